// Images, files and links of messages, in LangChain's form.

import type { MessageInitShape } from "@bufbuild/protobuf";
import { AIMessage, type BaseMessage } from "@langchain/core/messages";
import type { Item, ItemSchema } from "./gen/agent_routing/v1/item_pb.js";

/** Kinds of content that LangChain tells from files, by media type. */
const KINDS: ReadonlySet<string> = new Set(["image", "audio", "video"]);

/** Of an answer, from the contract. */
const ITEMS_MAX = 16;
const ITEMS_BYTES_MAX = 64 * 1024;
/** More than the fields around the content of one item take. */
const ITEM_FRAME_BYTES = 16;

/** An item of an answer. */
export type AnswerItem = MessageInitShape<typeof ItemSchema>;

/** A part of a message's content. */
interface Block {
  readonly type: string;
  readonly [key: string]: unknown;
}

/** Returns a user's message: its text, or a list of its text, images and files. */
export function contentOf(text: string, items: readonly Item[]): string | Block[] {
  const texts = items.flatMap(({ content }) => (content.case === "text" ? [content.value] : []));
  const whole = [text, ...texts].filter((each) => each !== "").join("\n\n");
  const blocks = items.flatMap(blockOf);
  if (blocks.length === 0) return whole;
  return whole === "" ? blocks : [{ type: "text", text: whole }, ...blocks];
}

function blockOf({ contentType, content }: Item): Block[] {
  const [mimeType = ""] = contentType.split(";");
  const [kind = ""] = mimeType.split("/");
  const type = KINDS.has(kind) ? kind : "file";
  if (content.case === "uri") return [{ type, mimeType, url: content.value }];
  if (content.case !== "data") return [];
  return [{ type, mimeType, data: Buffer.from(content.value).toString("base64") }];
}

/**
 * Returns the images and files among an agent's messages. Those that do not fit into an answer are
 * left out: 16 items, and 64 KiB in all.
 */
export function itemsOf(messages: readonly BaseMessage[]): AnswerItem[] {
  const items: AnswerItem[] = [];
  let bytes = 0;
  for (const message of messages) {
    if (!(message instanceof AIMessage)) continue;
    for (const block of message.contentBlocks) {
      const found = itemOf(block as Block);
      if (found === undefined) continue;
      const size = sizeOf(found);
      if (items.length >= ITEMS_MAX || bytes + size > ITEMS_BYTES_MAX) {
        console.warn(`item_left_out: ${found.contentType} of ${size} bytes`);
        continue;
      }
      items.push(found);
      bytes += size;
    }
  }
  return items;
}

function itemOf(block: Block): AnswerItem | undefined {
  if (!KINDS.has(block.type) && block.type !== "file") return undefined;
  const { url, data, mimeType } = block;
  const contentType = typeof mimeType === "string" ? mimeType : "application/octet-stream";
  if (typeof url === "string") return { contentType, content: { case: "uri", value: url } };
  if (typeof data !== "string" && !(data instanceof Uint8Array)) return undefined;
  const value = typeof data === "string" ? new Uint8Array(Buffer.from(data, "base64")) : data;
  return { contentType, content: { case: "data", value: value as Uint8Array<ArrayBuffer> } };
}

function sizeOf({ contentType, content }: AnswerItem): number {
  return (contentType?.length ?? 0) + (content?.value?.length ?? 0) + ITEM_FRAME_BYTES;
}
