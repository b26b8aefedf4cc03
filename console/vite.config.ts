import { fileURLToPath } from "node:url";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig({
  plugins: [svelte()],
  resolve: {
    alias: { "@agent-routing/v1": here("../clients/typescript/src/v1.ts") },
    // The generated code is outside this folder; its packages are this folder's.
    dedupe: ["@bufbuild/protobuf"],
  },
  build: {
    outDir: process.env.CONSOLE_OUT ?? here("../routing_service/web/console_page"),
    emptyOutDir: true,
    modulePreload: { polyfill: false },
    // The policy of the page allows files of its own alone, so nothing is inlined.
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "console.js",
        // The first page needs few of them: the others come when their page is opened.
        chunkFileNames: "console-[name].js",
        assetFileNames: "console.[ext]",
      },
    },
  },
});
