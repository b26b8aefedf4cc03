// Sign-in of the page: a token that is pasted, or one from the issuer by code flow with PKCE. The
// token stays in sessionStorage: it is gone when the tab is closed, and no request carries it by itself.

export interface SignInWay {
  /** The server's setting sign_in. */
  kind: string;
  issuer: string;
  /** Empty: the page asks for a token. */
  clientId: string;
  scopes: string;
}

interface Begun {
  state: string;
  verifier: string;
  tokenEndpoint: string;
  /** The query of the page before it was left. */
  query: string;
}

const TOKEN = "agent-routing.token";
const BEGUN = "agent-routing.sign-in";

/** A sign-in that failed. Its message has the cause, for the operator. */
export class SignInFailed extends Error {}

/** Whether callers sign in. The first look into sessionStorage waits for another process. */
let signsIn = true;

export async function signInWay(): Promise<SignInWay> {
  const answer = await fetch("/sign-in.json");
  if (!answer.ok) throw new SignInFailed(`/sign-in.json: HTTP ${answer.status}`);
  const way: SignInWay = await answer.json();
  signsIn = way.kind !== "none";
  return way;
}

export function token(): string {
  return signsIn ? (sessionStorage.getItem(TOKEN) ?? "") : "";
}

export function keepToken(value: string): void {
  sessionStorage.setItem(TOKEN, value.trim());
}

export function signOut(): void {
  sessionStorage.removeItem(TOKEN);
}

/** Says whether calls without a token are refused, as far as the page knows before the first one. */
export function needsToken(way: SignInWay): boolean {
  return way.kind === "oidc" || way.kind === "development";
}

/** Leaves the page for the issuer's. */
export async function begin(way: SignInWay): Promise<void> {
  if (!globalThis.crypto?.subtle) {
    throw new SignInFailed("the browser needs HTTPS, or 127.0.0.1, to sign in");
  }
  const issuer = way.issuer.replace(/\/$/, "");
  const answer = await fetch(`${issuer}/.well-known/openid-configuration`);
  if (!answer.ok) throw new SignInFailed(`${issuer}: HTTP ${answer.status}`);
  const described = await answer.json();
  if (described.issuer !== way.issuer) {
    throw new SignInFailed(`the issuer calls itself ${described.issuer}, not ${way.issuer}`);
  }
  for (const name of ["authorization_endpoint", "token_endpoint"]) {
    if (new URL(described[name]).origin !== new URL(issuer).origin) {
      throw new SignInFailed(`${name} is not at the issuer's origin: ${described[name]}`);
    }
  }
  const begun: Begun = {
    state: random(),
    verifier: random(),
    tokenEndpoint: described.token_endpoint,
    query: location.search,
  };
  sessionStorage.setItem(BEGUN, JSON.stringify(begun));
  const hashed = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(begun.verifier));
  const asked = new URL(described.authorization_endpoint);
  for (const [name, value] of Object.entries({
    response_type: "code",
    client_id: way.clientId,
    redirect_uri: `${location.origin}/`,
    scope: way.scopes,
    state: begun.state,
    code_challenge: base64url(new Uint8Array(hashed)),
    code_challenge_method: "S256",
  })) {
    asked.searchParams.set(name, value);
  }
  location.assign(asked);
}

/** Exchanges the code with which the issuer sent the browser back, if it did. */
export async function finish(way: SignInWay): Promise<void> {
  const given = new URLSearchParams(location.search);
  if (!given.has("state") || !(given.has("code") || given.has("error"))) return;
  const stored = sessionStorage.getItem(BEGUN);
  sessionStorage.removeItem(BEGUN);
  const begun: Begun | null = stored === null ? null : JSON.parse(stored);
  history.replaceState(null, "", `/${begun?.query ?? ""}`);
  if (begun === null || given.get("state") !== begun.state) {
    throw new SignInFailed("the issuer's answer belongs to another sign-in");
  }
  if (given.has("iss") && given.get("iss") !== way.issuer) {
    throw new SignInFailed(`the answer is of another issuer: ${given.get("iss")}`);
  }
  if (given.has("error")) {
    throw new SignInFailed(`${given.get("error")} ${given.get("error_description") ?? ""}`.trim());
  }
  const answer = await fetch(begun.tokenEndpoint, {
    method: "POST",
    body: new URLSearchParams({
      grant_type: "authorization_code",
      code: given.get("code") ?? "",
      redirect_uri: `${location.origin}/`,
      client_id: way.clientId,
      code_verifier: begun.verifier,
    }),
  });
  const answered = await answer.json().catch(() => ({}));
  if (!answer.ok || typeof answered.access_token !== "string") {
    throw new SignInFailed(`${begun.tokenEndpoint}: ${answered.error ?? `HTTP ${answer.status}`}`);
  }
  keepToken(answered.access_token);
}

function random(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}
