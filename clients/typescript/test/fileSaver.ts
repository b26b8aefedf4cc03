// A saver of which a file keeps the content, after each change: it survives kill -9.

import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { MemorySaver } from "@langchain/langgraph";

export class FileSaver extends MemorySaver {
  constructor(private readonly path: string) {
    super();
    if (existsSync(path)) {
      const kept = JSON.parse(readFileSync(path, "utf-8"), revive);
      this.storage = kept.storage;
      this.writes = kept.writes;
    }
  }

  override async put(...given: Parameters<MemorySaver["put"]>) {
    const config = await super.put(...given);
    this.#save();
    return config;
  }

  override async putWrites(...given: Parameters<MemorySaver["putWrites"]>) {
    await super.putWrites(...given);
    this.#save();
  }

  override async deleteThread(threadId: string) {
    await super.deleteThread(threadId);
    this.#save();
  }

  #save(): void {
    const kept = JSON.stringify({ storage: this.storage, writes: this.writes }, replace);
    writeFileSync(`${this.path}.part`, kept);
    renameSync(`${this.path}.part`, this.path);
  }
}

function replace(_key: string, value: unknown): unknown {
  return value instanceof Uint8Array ? { bytes: Buffer.from(value).toString("base64") } : value;
}

function revive(_key: string, value: unknown): unknown {
  const bytes = (value as { bytes?: unknown } | null)?.bytes;
  return typeof bytes === "string" ? new Uint8Array(Buffer.from(bytes, "base64")) : value;
}
