// Waiting that an AbortSignal ends.

/** Waits for milliseconds. Throws the signal's reason as soon as it is aborted. */
export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Returns a time limit in milliseconds. Throws RangeError unless it is finite and above 0. */
export function positiveMs(name: string, value: number): number {
  if (!(Number.isFinite(value) && value > 0)) {
    throw new RangeError(`${name} is ${value}; give a finite number of milliseconds above 0`);
  }
  return value;
}
