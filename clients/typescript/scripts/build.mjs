// Compiles src into dist, for `npm pack` and for an installation from this folder. Installs the
// compiler first where it is missing, as in a fresh checkout.
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

const folder = fileURLToPath(new URL("..", import.meta.url));

function run(command, ...words) {
  // Windows starts npm's .cmd files only through a shell.
  const windows = process.platform === "win32";
  const done = spawnSync(command, words, { cwd: folder, stdio: ["ignore", 2, 2], shell: windows });
  if (done.error) throw done.error;
  if (done.status !== 0) process.exit(done.status ?? 1);
}

// While `npm ci` or `npm install` runs in this folder itself, its dependencies are being installed:
// "npm run build" follows where it is wanted. --prepare: npm calls it for the script "prepare".
const installsItself =
  process.argv.includes("--prepare") &&
  ["ci", "install"].includes(process.env.npm_command ?? "") &&
  process.env.npm_config_local_prefix === folder.replace(/[\\/]$/, "");

if (!installsItself) {
  if (!existsSync(new URL("../node_modules/typescript/package.json", import.meta.url))) {
    run("npm", "ci", "--ignore-scripts", "--no-progress", "--no-audit", "--no-fund");
  }
  run("npm", "run", "--silent", "build");
}
