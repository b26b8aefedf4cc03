// The client for Node: gRPC over HTTP/2.

import { connect as connectPlain, isIP, type Socket } from "node:net";
import { connect as connectSecure } from "node:tls";
import type { Interceptor } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { type ClientSettings, RoutingClient } from "./client.js";
import type { Connection, Place } from "./replicas.js";

export * from "./client.js";
export * from "./common.js";
export { homeFile } from "./homeFile.js";

/** TLS options, as in node:tls. */
export interface TlsOptions {
  /** Authorities to trust, PEM. Default: those that Node trusts. */
  ca?: string | Buffer;
  /** The client's certificate and key, PEM, if the service asks for one. */
  cert?: string | Buffer;
  key?: string | Buffer;
  /** The name in the certificate, if it is not the target's. */
  servername?: string;
}

export interface ClientOptions extends ClientSettings {
  /** true, or TLS options. Default: plain text, for loopback and meshes. */
  tls?: boolean | TlsOptions;
  /** Called around every attempt, for example to carry traces. */
  interceptors?: Interceptor[];
  /** A connection with open calls gets a ping after this silence. Default 60,000. */
  keepaliveMs?: number;
  /** Send tokens over plain text to other machines, if a mesh encrypts. Default false. */
  allowPlainTextToken?: boolean;
}

/** The service accepts pings on a connection at most every 30 s. */
const KEEPALIVE_MS = 60_000;
const KEEPALIVE_TIMEOUT_MS = 20_000;

/** Answers are pages of at most 1 MiB, and histories below that. */
const READ_BYTES_MAX = 4 * 1024 * 1024;

const LOOPBACK = /^(127\.|localhost$|\[::1\]$)/;

/**
 * Calls the agent routing service over gRPC.
 *
 *   using client = new Client("127.0.0.1:50051");
 *   const turn = await client.route({ text: "hello", sessionId: "chat-42", userId: "ana" });
 *
 * target: "HOST:PORT", or several replicas as an array. Any of them serves any session; if one does
 * not answer a call, the next one is tried.
 */
export class Client extends RoutingClient {
  constructor(target: string | readonly string[], options: ClientOptions = {}) {
    const targets = typeof target === "string" ? [target] : target;
    super(
      targets.map((each) => place(each, options)),
      options,
    );
  }
}

function place(target: string, options: ClientOptions): Place {
  const { tls = false, token, allowPlainTextToken = false } = options;
  const url = urlOf(target, tls !== false);
  if (token !== undefined && !tls && !allowPlainTextToken && !LOOPBACK.test(url.hostname)) {
    throw new TypeError(
      `a token would go to "${target}" in plain text; set tls, or allowPlainTextToken if the ` +
        "network encrypts",
    );
  }
  const connect = () => connection(url, tls, options);
  return { target, connect, ...connect() };
}

function connection(url: URL, tls: boolean | TlsOptions, options: ClientOptions): Connection {
  const pingIntervalMs = options.keepaliveMs ?? KEEPALIVE_MS;
  const sockets = new Set<Socket>();
  const sessionManager = new Http2SessionManager(
    url,
    { pingIntervalMs, pingTimeoutMs: KEEPALIVE_TIMEOUT_MS },
    {
      createConnection: () => {
        const socket = tls ? secureSocket(url, tls === true ? {} : tls) : plainSocket(url);
        sockets.add(socket);
        socket.once("close", () => sockets.delete(socket));
        return socket;
      },
    },
  );
  const transport = createGrpcTransport({
    baseUrl: url.origin,
    sessionManager,
    readMaxBytes: READ_BYTES_MAX,
    ...(options.interceptors && { interceptors: options.interceptors }),
  });
  return {
    transport,
    isCut: () => sockets.size === 0,
    // Aborting the session would send an error code, which the service would log.
    close: () => {
      for (const socket of sockets) socket.destroy();
    },
  };
}

function plainSocket(url: URL): Socket {
  return connectPlain(Number(url.port || 80), hostOf(url));
}

function secureSocket(url: URL, given: TlsOptions): Socket {
  const host = hostOf(url);
  return connectSecure({
    host,
    port: Number(url.port || 443),
    ALPNProtocols: ["h2"],
    // Server names are names only, never addresses.
    ...(isIP(host) === 0 && { servername: host }),
    ...given,
  });
}

/** Returns the host for sockets: an IPv6 address without brackets. */
function hostOf(url: URL): string {
  return url.hostname.replace(/^\[(.*)\]$/, "$1");
}

/** Returns the URL of a target. Throws TypeError for an invalid one. */
function urlOf(target: string, isSecure: boolean): URL {
  try {
    const url = new URL(`${isSecure ? "https" : "http"}://${target}`);
    if (url.host === "" || url.pathname !== "/" || target.includes("/")) throw new TypeError();
    return url;
  } catch (error) {
    throw new TypeError(`"${target}" is not a target; give HOST:PORT, such as 127.0.0.1:50051`, {
      cause: error,
    });
  }
}
