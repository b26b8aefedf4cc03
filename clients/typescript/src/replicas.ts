// The replicas of the service that a client may talk to, and which it talks to now.
//
// Rule: any replica serves any session, so a client stays with one until that one does not answer,
// and then goes on with the next.

import { type Client, createClient, type Transport } from "@connectrpc/connect";
import { AdminService } from "./gen/agent_routing/v1/admin_service_pb.js";
import { RoutingService } from "./gen/agent_routing/v1/routing_service_pb.js";

/** The methods of both services, as they are on the wire. */
export interface Stub {
  readonly routing: Client<typeof RoutingService>;
  readonly admin: Client<typeof AdminService>;
}

/**
 * One place where the service is.
 *
 * close: lets go of its connection. isCut: tells whether the last connection is no more, where the
 * transport itself does not say so: Node ends the calls of a lost connection as if the service had
 * cancelled them.
 */
export interface Place {
  readonly target: string;
  readonly transport: Transport;
  readonly isCut?: () => boolean;
  readonly close?: () => void;
}

/** A place, with its methods. */
export interface Replica extends Place {
  readonly stub: Stub;
}

export class Replicas {
  readonly #all: readonly Replica[];
  #at = 0;
  #closed = false;

  constructor(places: readonly Place[]) {
    if (places.length === 0) throw new RangeError("no target is given; give one or more");
    this.#all = places.map((place) => ({
      ...place,
      stub: {
        routing: createClient(RoutingService, place.transport),
        admin: createClient(AdminService, place.transport),
      },
    }));
  }

  /** Returns the one to talk to. Throws once the client is closed. */
  current(): Replica {
    this.throwIfClosed();
    return this.#all[this.#at] as Replica;
  }

  /** Takes the next one, unless another call already did. */
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
      throw new Error(`the client of "${targets}" is closed; make another one`, { cause });
    }
  }
}
