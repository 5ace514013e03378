import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, loadEnv } from "vite";

/** For work on the console: the service that runs beside it, and that it asks. */
function service(mode: string): string {
  return loadEnv(mode, ".", "MESHFLEET_URL")["MESHFLEET_URL"] ?? "http://127.0.0.1:8080";
}

export default defineConfig(({ mode }) => ({
  plugins: [svelte()],
  server: { proxy: { "/api/v1": { target: service(mode), ws: true }, "/readyz": service(mode) } },
  build: {
    outDir: "../src/meshfleet/service/console/site",
    emptyOutDir: true,
    target: "es2022",
    // A strict policy lets no page bring its own styles or pictures inside an address.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // What pages share is one file, and each page one more: in many small ones a page comes later, and is larger.
    rolldownOptions: { output: { codeSplitting: { groups: [{ name: "common", minShareCount: 2 }] } } },
    // In kB. The reference of the REST interface is as large; it is fetched by who opens it, and in one piece.
    chunkSizeWarningLimit: 1600,
    // What others wrote goes along with their licences.
    license: { fileName: "licenses.md" },
  },
}));
