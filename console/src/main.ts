import "./style/base.css";

import { mount } from "svelte";

import App from "./App.svelte";
import { session } from "./api/session.svelte";

void session.begin();
const target = document.getElementById("app");
if (target) mount(App, { target });
