// The replicas of the service, and the one that a client currently uses.
//
// Any replica serves any session, so a client uses one until it does not answer, and then the next.

import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { AdminService } from "./gen/agent_routing/v1/admin_service_pb.js";
import { RoutingService } from "./gen/agent_routing/v1/routing_service_pb.js";

/** The methods of both services. */
export interface Stub {
  readonly routing: Client<typeof RoutingService>;
  readonly admin: Client<typeof AdminService>;
}

/**
 * One replica of the service.
 *
 * close: closes its connection. isCut: tells whether the last connection was lost, if the transport
 * does not report it: Node ends the calls of a lost connection as if the service had cancelled
 * them.
 */
export interface Place {
  readonly target: string;
  readonly transport: Transport;
  readonly isCut?: () => boolean;
  readonly close?: () => void;
}

/** A replica, with its methods. */
export interface Replica extends Place {
  readonly stub: Stub;
}

export class Replicas {
  readonly #all: readonly Replica[];
  #at = 0;
  #closed = false;

  constructor(places: readonly Place[]) {
    if (places.length === 0) throw new RangeError("there is no target; give one or more");
    this.#all = places.map((place) => ({
      ...place,
      stub: {
        routing: createClient(RoutingService, place.transport),
        admin: createClient(AdminService, place.transport),
      },
    }));
  }

  /** Returns the current replica. Throws if the client is closed. */
  current(): Replica {
    this.throwIfClosed();
    return this.#all[this.#at] as Replica;
  }

  /** Switches to the next replica, unless another call already did. */
  turnFrom(replica: Replica): void {
    if (this.#all[this.#at] === replica) this.#at = (this.#at + 1) % this.#all.length;
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    for (const replica of this.#all) replica.close?.();
  }

  get isClosed(): boolean {
    return this.#closed;
  }

  throwIfClosed(cause?: unknown): void {
    if (this.#closed) {
      const targets = this.#all.map((replica) => replica.target).join(", ");
      throw new Error(`the client of "${targets}" is closed; create another one`, { cause });
    }
  }
}
