/** Types of the parts of Swagger UI that are used here. */
declare module "swagger-ui-dist/swagger-ui-es-bundle.js" {
  export interface TriedRequest {
    url: string;
    method: string;
    headers: Record<string, string>;
    body?: BodyInit;
    /** Function that sends the request, in place of `fetch`. */
    userFetch?: (url: string, request: TriedRequest) => Promise<Response>;
  }

  /** React element. */
  type ReactElement = object | null;
  type Component<Props> = (props: Props) => ReactElement;

  export interface System {
    readonly React: { createElement(component: string | Component<never>, props: object | null, ...children: ReactElement[]): ReactElement };
    readonly layoutActions: { updateFilter(text: string | false): void };
  }

  export interface LayoutProps {
    /** Return a component by its name; with `true` it is connected to the store. */
    getComponent(name: string, connected?: boolean): Component<never>;
  }

  export type Plugin = (system: System) => {
    readonly components: Readonly<Record<string, Component<LayoutProps>>>;
    /** Functions that replace a component of Swagger UI. */
    readonly wrapComponents: Readonly<Record<string, () => Component<never>>>;
  };

  interface Options {
    domNode: HTMLElement;
    spec: object;
    layout: string;
    validatorUrl: null;
    deepLinking: boolean;
    docExpansion: "list" | "full" | "none";
    defaultModelsExpandDepth: number;
    displayRequestDuration: boolean;
    persistAuthorization: boolean;
    syntaxHighlight: boolean;
    requestInterceptor: (request: TriedRequest) => TriedRequest;
    plugins: readonly Plugin[];
    onComplete: () => void;
  }

  export default function SwaggerUI(options: Options): System;
}
