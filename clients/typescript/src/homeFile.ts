// Keeps the home agent's id in a file, for processes that start while the service is away.

import { readFileSync, renameSync, writeFileSync } from "node:fs";
import type { HomeCache } from "./knownAgents.js";

/** Of the file: an id and the line's end. */
const HOME_CHARACTERS_MAX = 130;

/** Returns a cache in a file. A file that cannot be read or written is no reason to fail a call. */
export function homeFile(path: string): HomeCache {
  return {
    read() {
      try {
        return readFileSync(path, "ascii").slice(0, HOME_CHARACTERS_MAX).trim();
      } catch {
        return "";
      }
    },
    write(agentId) {
      const fresh = `${path}.${process.pid}`;
      try {
        writeFileSync(fresh, `${agentId}\n`, { mode: 0o600 });
        renameSync(fresh, path);
      } catch {
        // The next process learns it from the service.
      }
    },
  };
}
