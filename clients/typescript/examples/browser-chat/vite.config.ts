import { defineConfig } from "vite";

export default defineConfig({
  // The page is served from any folder.
  base: "./",
  server: { port: 5173, strictPort: true },
});
