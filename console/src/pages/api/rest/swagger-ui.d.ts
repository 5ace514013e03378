/** As much of Swagger UI as is used here. */
declare module "swagger-ui-dist/swagger-ui-es-bundle.js" {
  export interface TriedRequest {
    url: string;
    method: string;
    headers: Record<string, string>;
    body?: BodyInit;
    /** What sends it, in place of `fetch`. */
    userFetch?: (url: string, request: TriedRequest) => Promise<Response>;
  }

  /** What React draws, and what makes it. */
  type Drawn = object | null;
  type Component<Props> = (props: Props) => Drawn;

  export interface System {
    readonly React: { createElement(component: string | Component<never>, props: object | null, ...inside: Drawn[]): Drawn };
    readonly layoutActions: { updateFilter(text: string | false): void };
  }

  export interface LayoutProps {
    /** A component by its name; with `true` it is connected to what it shows. */
    getComponent(name: string, connected?: boolean): Component<never>;
  }

  export type Plugin = (system: System) => {
    readonly components: Readonly<Record<string, Component<LayoutProps>>>;
    /** Takes a component of Swagger UI and gives one in its place. */
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
