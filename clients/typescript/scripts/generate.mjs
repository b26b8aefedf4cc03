// Generates src/gen from the contract, or with --check says whether it is what the contract gives.
//
// Needs buf: the one that `make install` puts into .venv, or one on the path.

import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const client = fileURLToPath(new URL("..", import.meta.url));
const root = join(client, "..", "..");
const checkedIn = join(client, "src", "gen");
const ownBuf = join(root, ".venv", "bin", "buf");

/** Writes the generated code below a folder. */
function generate(folder) {
  const command = [
    "generate",
    root,
    "--template=buf.gen.yaml",
    `--output=${folder}`,
    `--path=${join(root, "protos", "agent_routing", "v1")}`,
    `--path=${join(root, "third_party", "googleapis", "google", "rpc")}`,
  ];
  const ran = spawnSync(existsSync(ownBuf) ? ownBuf : "buf", command, {
    cwd: client,
    stdio: "inherit",
  });
  if (ran.error) throw ran.error;
  if (ran.status !== 0) process.exit(ran.status ?? 1);
}

/** Returns what a folder holds: contents by path. */
function contents(folder) {
  const files = readdirSync(folder, { recursive: true, withFileTypes: true });
  return new Map(
    files
      .filter((file) => file.isFile())
      .map((file) => {
        const path = join(file.parentPath ?? file.path, file.name);
        return [relative(folder, path), readFileSync(path, "utf8")];
      }),
  );
}

const fresh = mkdtempSync(join(tmpdir(), "agent-routing-typescript-"));
try {
  generate(fresh);
  const made = join(fresh, "src", "gen");
  if (process.argv.includes("--check")) {
    const [wanted, present] = [contents(made), contents(checkedIn)];
    const differing = [...new Set([...wanted.keys(), ...present.keys()])]
      .filter((path) => wanted.get(path) !== present.get(path))
      .sort();
    for (const path of differing) {
      console.error(`src/gen/${path} is not what protos/ generates`);
    }
    if (differing.length > 0) {
      console.error("run `npm run generate` in clients/typescript and commit the result");
      process.exitCode = 1;
    } else {
      console.log(`${wanted.size} generated files are current`);
    }
  } else {
    rmSync(checkedIn, { recursive: true, force: true });
    cpSync(made, checkedIn, { recursive: true });
    console.log(`${contents(checkedIn).size} files generated in src/gen`);
  }
} finally {
  rmSync(fresh, { recursive: true, force: true });
}
