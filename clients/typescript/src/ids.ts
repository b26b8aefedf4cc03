// New ids for requests and sessions: ordered by time, with the system's randomness.

const MILLISECONDS_BYTES = 6;

/** Returns a UUIDv7 (RFC 9562) in its canonical form: milliseconds since 1970, then random bits. */
export function newUuid7(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let milliseconds = Date.now();
  for (let at = MILLISECONDS_BYTES - 1; at >= 0; at--) {
    bytes[at] = milliseconds % 256;
    milliseconds = Math.floor(milliseconds / 256);
  }
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x70;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    hex.slice(12, 16),
    hex.slice(16, 20),
    hex.slice(20),
  ].join("-");
}
