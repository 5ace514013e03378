/** The operations as Swagger UI shows them. This file is fetched when somebody opens the part, and no sooner: it is larger
 * than all else together. */
import "swagger-ui-dist/swagger-ui.css";
import "./reference.css";

import SwaggerUI, { type Plugin, type System } from "swagger-ui-dist/swagger-ui-es-bundle.js";

import type { Pass } from "./pass.svelte";
import { prepared } from "./sending";

const LAYOUT = "WithinOurPage";

/** The operations and what their bodies are made of. Our page has the rest: the head, the token, the search; and there is
 * one server, which is this one. */
const ours: Plugin = ({ React: { createElement } }) => ({
  components: {
    [LAYOUT]: ({ getComponent }) =>
      createElement(
        "div",
        { className: "swagger-ui" },
        createElement(getComponent("SvgAssets"), null),
        createElement(getComponent("errors", true), null),
        createElement(getComponent("operations", true), null),
        createElement(getComponent("Models", true), null),
      ),
  },
  wrapComponents: { authorizeOperationBtn: () => () => null },
});

/** Show all operations of a document in an element. */
export function show(element: HTMLElement, document: object, pass: Pass, oncomplete: () => void): System {
  return SwaggerUI({
    domNode: element,
    spec: document,
    layout: LAYOUT,
    // Else it asks another host whether the document is right.
    validatorUrl: null,
    deepLinking: false,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    persistAuthorization: false,
    // It would colour code by styles of its own, which fit neither theme.
    syntaxHighlight: false,
    requestInterceptor: (request) => prepared(request, pass),
    plugins: [ours],
    onComplete: oncomplete,
  });
}
