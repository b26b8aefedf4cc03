// Commands that the client understands while the service is away, and its replies to them.
//
// The names and what counts as typing one are the service's (tests/clients/vectors/text).

const NAMES: Readonly<Record<string, string>> = {
  supervisor:
    "supervisor supervisora back home menu exit quit leave main salir volver inicio regresar " +
    "atras principal voltar sair",
  reset: "reset restart reiniciar resetear recomecar resetar",
  agents: "agents specialists agentes especialistas",
  agent: "agent agente",
  status: "status estado estatus situacao",
  history: "history historial historia historico",
  help: "help ayuda ajuda",
};
const COMMANDS = new Map(
  Object.entries(NAMES).flatMap(([command, names]) =>
    names.split(" ").map((name) => [name, command] as const),
  ),
);

const LEADING_HOME: ReadonlySet<string> = new Set(["supervisor", "reset"]);
const NAME_CHARACTERS_MAX = 64;
const UNSEEN = /^(?:\p{Cf}|\u034f|[\ufe00-\ufe0f])$/u;
const SPACE = /^\s$/u;
const OF_NAME = /^(?:[\p{L}\p{N}_\p{Mn}\p{Cf}-]|\u034f|[\ufe00-\ufe0f])$/u;
const SYMBOL = /^[\p{So}\p{Sk}]$/u;
const ALPHABETIC = /^\p{L}$/u;
const PUNCTUATION = new Set(".,;:!?…¡¿·~*\"'`´)]}»”’。，、！？；：-–—");
const TIGHT = new Set(",;:!…¡¿–—，、！；：");
const SEPARATORS = new Set(".,;:!?…-–—，、！？；：。");

const BACK_HOME: Readonly<Record<string, string>> = {
  en: "You are back with the main assistant.",
  es: "Vuelves a estar con el asistente principal.",
  pt: "Você está de volta com o assistente principal.",
};
const NOT_NOW: Readonly<Record<string, string>> = {
  en: "That is not possible right now. Please try again in a few minutes.",
  es: "Ahora mismo no es posible. Inténtalo de nuevo en unos minutos.",
  pt: "Isso não é possível agora. Tente de novo em alguns minutos.",
};

/** A command in a message. */
export interface AwayCommand {
  /** As in the service's table. */
  readonly name: string;
  /** The text after it. */
  readonly rest: string;
}

/** Tells whether a command leads back to the home agent. */
export function leadsHome(command: AwayCommand): boolean {
  return LEADING_HOME.has(command.name);
}

/** Returns the command that a message is, or undefined for ordinary text. */
export function parseCommand(message: string): AwayCommand | undefined {
  const text = [...message];
  let start = skip(text, 0, "¿¡");
  if (text[start] !== "/" && text[start] !== "\uff0f") return undefined;
  start++;
  let end = start;
  while (end < text.length && end - start <= NAME_CHARACTERS_MAX && OF_NAME.test(text[end] ?? "")) {
    end++;
  }
  const name = COMMANDS.get(folded(text.slice(start, end)));
  const rest = afterName(text.slice(end));
  if (name === undefined || rest === undefined) return undefined;
  return { name, rest: name === "agent" || /[\p{L}\p{N}]/u.test(rest) ? rest : "" };
}

/** Returns what is shown for a command while the service is away, and its language. */
export function replyTo(command: AwayCommand, locale: string): { text: string; locale: string } {
  const texts = leadsHome(command) ? BACK_HOME : NOT_NOW;
  const language = locale.split(/[-_]/)[0]?.toLowerCase() ?? "";
  const text = texts[language];
  return text === undefined ? { text: texts.en ?? "", locale: "en" } : { text, locale: language };
}

function folded(word: readonly string[]): string {
  // Signs that Unicode folds to letters, and that are none.
  if (word.some((each) => each >= "\u2100" && each <= "\u214f")) return word.join("");
  return word
    .filter((each) => !UNSEEN.test(each))
    .join("")
    .replace(/[\uff01-\uff5e]/g, (each) => String.fromCharCode(each.charCodeAt(0) - 0xfee0))
    .normalize("NFD")
    .replace(/[\u0300-\u0303\u0308\u0327]/g, "")
    .toLowerCase();
}

function skip(text: readonly string[], from: number, also = ""): number {
  let place = from;
  for (; place < text.length; place++) {
    const each = text[place] ?? "";
    if (!(SPACE.test(each) || UNSEEN.test(each) || also.includes(each))) break;
  }
  return place;
}

/** Returns what follows a name; undefined if it goes on, as a path or a longer word does. */
function afterName(text: readonly string[]): string | undefined {
  let place = 0;
  for (; place < text.length; place++) {
    const each = text[place] ?? "";
    if (!(PUNCTUATION.has(each) || UNSEEN.test(each) || SYMBOL.test(each))) break;
  }
  const next = text[place];
  if (next !== undefined && !SPACE.test(next)) {
    const isTight = place > 0 && TIGHT.has(text[place - 1] ?? "");
    return isTight && ALPHABETIC.test(next) ? text.slice(place).join("") : undefined;
  }
  let rest = text.slice(skip(text, place));
  let end = 0;
  while (SEPARATORS.has(rest[end] ?? "")) end++;
  if (end > 0 && (end === rest.length || SPACE.test(rest[end] ?? ""))) {
    rest = rest.slice(skip(rest, end));
  }
  return rest.join("");
}
