import "./style/base.css";

import { mount } from "svelte";

import App from "./App.svelte";
import { session } from "./api/session.svelte";

void session.start();
const target = document.getElementById("app");
if (target) mount(App, { target });
