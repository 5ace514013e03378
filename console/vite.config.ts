import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, loadEnv } from "vite";

/** Return the address of the service that the development server forwards requests to. */
function service(mode: string): string {
  return loadEnv(mode, ".", "MESHFLEET_URL")["MESHFLEET_URL"] ?? "http://127.0.0.1:8080";
}

/** Folders of code that several pages share, but not the first page. */
const LATER = /\/src\/(filtering|requests)\//;

export default defineConfig(({ mode }) => ({
  plugins: [svelte()],
  server: { proxy: { "/api/v1": { target: service(mode), ws: true }, "/readyz": service(mode) } },
  build: {
    outDir: "../src/meshfleet/service/console/site",
    emptyOutDir: true,
    target: "es2022",
    // The content security policy allows no data URLs for styles and images.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // One chunk for shared code, one for what several pages share but the first page does not need, and one per page: many
    // small chunks would be slower and larger.
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            { name: "common", minShareCount: 2 },
            { name: "later", test: LATER, minShareCount: 2, priority: 1, includeDependenciesRecursively: false },
          ],
        },
      },
    },
    // In kB: the size of the REST reference, which is loaded in one piece when its page is opened.
    chunkSizeWarningLimit: 1600,
    // Ships the licenses of the dependencies.
    license: { fileName: "licenses.md" },
  },
}));
