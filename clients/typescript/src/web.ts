// The client for browsers: Connect or gRPC-Web, over fetch, to the service's web listener.

import type { Interceptor } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { type ClientSettings, RoutingClient } from "./client.js";

export * from "./client.js";
export * from "./common.js";

export interface WebClientOptions extends ClientSettings {
  /** Default "connect". Both carry all calls except RouteStream, which needs gRPC. */
  protocol?: "connect" | "grpc-web";
  /** Called around every attempt. */
  interceptors?: Interceptor[];
}

/**
 * Calls the agent routing service from a browser.
 *
 *   const client = new WebClient("https://chat.example.org/routing");
 *
 * baseUrl: of the web listener; the page's own origin needs no CORS.
 */
export class WebClient extends RoutingClient {
  constructor(baseUrl: string, options: WebClientOptions = {}) {
    const { protocol = "connect", interceptors = [] } = options;
    const make = protocol === "connect" ? createConnectTransport : createGrpcWebTransport;
    super(
      [{ target: baseUrl, transport: make({ baseUrl, interceptors, useBinaryFormat: true }) }],
      options,
    );
  }
}
