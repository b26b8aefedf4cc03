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
 * A connection to the service.
 *
 * close: closes it. isCut: tells whether it was lost, if the transport does not report it: Node ends
 * the calls of a lost connection as if the service had cancelled them.
 */
export interface Connection {
  readonly transport: Transport;
  readonly isCut?: () => boolean;
  readonly close?: () => void;
}

/** One replica of the service. connect: makes one more connection, if the transport has its own. */
export interface Place extends Connection {
  readonly target: string;
  readonly connect?: () => Connection;
}

/**
 * Calls, or long streams, at a time on one connection: what every server allows, as HTTP/2
 * recommends. More would wait behind streams that do not end, or be refused.
 */
export const PLACES_MAX = 100;

/** A connection with its methods. streams: open now. */
interface Connected extends Connection {
  readonly stub: Stub;
  streams: number;
}

/** A replica, with its methods. */
export class Replica {
  readonly target: string;
  readonly stub: Stub;
  readonly isCut: () => boolean;
  readonly #place: Place;
  readonly #streaming: Connected[] = [];

  constructor(place: Place) {
    this.#place = place;
    this.target = place.target;
    this.stub = stubOf(place.transport);
    this.isCut = place.isCut ?? (() => false);
  }

  /**
   * Returns a connection with a place for a stream that stays open, so that no call waits behind
   * it. Call release when the stream has ended.
   */
  takeStream(): { stub: Stub; isCut: () => boolean; release: () => void } {
    const { connect } = this.#place;
    if (connect === undefined) return { ...this, release: () => undefined };
    let own = this.#streaming.find((each) => each.streams < PLACES_MAX);
    if (own === undefined) {
      const connection = connect();
      own = { ...connection, stub: stubOf(connection.transport), streams: 0 };
      this.#streaming.push(own);
    }
    const taken = own;
    taken.streams++;
    return {
      stub: taken.stub,
      isCut: taken.isCut ?? (() => false),
      release: () => {
        taken.streams--;
      },
    };
  }

  close(): void {
    for (const each of [this.#place, ...this.#streaming]) each.close?.();
  }
}

function stubOf(transport: Transport): Stub {
  return {
    routing: createClient(RoutingService, transport),
    admin: createClient(AdminService, transport),
  };
}

export class Replicas {
  readonly #all: readonly Replica[];
  #at = 0;
  #closed = false;

  constructor(places: readonly Place[]) {
    if (places.length === 0) throw new RangeError("there is no target; give one or more");
    this.#all = places.map((place) => new Replica(place));
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
    for (const replica of this.#all) replica.close();
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
