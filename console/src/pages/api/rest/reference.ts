/** Operations as Swagger UI shows them. This module is loaded only when the tab is opened: it is larger than the rest
 * of the console. */
import "swagger-ui-dist/swagger-ui.css";
import "./reference.css";

import SwaggerUI, { type Plugin, type System } from "swagger-ui-dist/swagger-ui-es-bundle.js";

import type { TrialToken } from "./trial-token.svelte";
import { prepareRequest } from "./trial-requests";

const LAYOUT = "WithinOurPage";

/** Plugin that renders only operations and models. The page itself has the head, the token and the search, and there is
 * only one server. */
const layoutPlugin: Plugin = ({ React: { createElement } }) => ({
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

/** Render all operations of a document in an element. */
export function renderReference(element: HTMLElement, document: object, trialToken: TrialToken, oncomplete: () => void): System {
  return SwaggerUI({
    domNode: element,
    spec: document,
    layout: LAYOUT,
    // Otherwise Swagger UI sends the document to a validator on another host.
    validatorUrl: null,
    deepLinking: false,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    displayRequestDuration: true,
    persistAuthorization: false,
    // Its highlighting has its own colors, which fit neither theme.
    syntaxHighlight: false,
    requestInterceptor: (request) => prepareRequest(request, trialToken),
    plugins: [layoutPlugin],
    onComplete: oncomplete,
  });
}
