package agentrouting

import (
	"strings"
	"unicode"
)

// Commands that the client understands while the service is away, and its replies to them. The names
// and what counts as typing one are the service's (tests/clients/vectors/text).

const commandNameMax = 64

var (
	awayCommands = commandsByName(map[string]string{
		"supervisor": "supervisor supervisora back home menu exit quit leave main salir volver inicio regresar " +
			"atras principal voltar sair",
		"reset":   "reset restart reiniciar resetear recomecar resetar",
		"agents":  "agents specialists agentes especialistas",
		"agent":   "agent agente",
		"status":  "status estado estatus situacao",
		"history": "history historial historia historico",
		"help":    "help ayuda ajuda",
	})
	backHome = map[string]string{
		"en": "You are back with the main assistant.",
		"es": "Vuelves a estar con el asistente principal.",
		"pt": "Você está de volta com o assistente principal.",
	}
	notNow = map[string]string{
		"en": "That is not possible right now. Please try again in a few minutes.",
		"es": "Ahora mismo no es posible. Inténtalo de nuevo en unos minutos.",
		"pt": "Isso não é possível agora. Tente de novo em alguns minutos.",
	}
	// What accented letters of the languages of the replies are without their accents.
	plainLetters = strings.NewReplacer(
		"à", "a", "á", "a", "â", "a", "ã", "a", "ä", "a", "ç", "c", "è", "e", "é", "e", "ê", "e", "ë", "e",
		"ì", "i", "í", "i", "î", "i", "ï", "i", "ñ", "n", "ò", "o", "ó", "o", "ô", "o", "õ", "o", "ö", "o",
		"ù", "u", "ú", "u", "û", "u", "ü", "u", "ý", "y", "ÿ", "y",
		"\u0300", "", "\u0301", "", "\u0302", "", "\u0303", "", "\u0308", "", "\u0327", "",
	)
)

const (
	commandPunctuation = ".,;:!?…¡¿·~*\"'`´)]}»”’。，、！？；：-–—"
	commandTight       = ",;:!…¡¿–—，、！；："
	commandSeparators  = ".,;:!?…-–—，、！？；：。"
)

func commandsByName(names map[string]string) map[string]string {
	byName := map[string]string{}
	for command, all := range names {
		for _, name := range strings.Fields(all) {
			byName[name] = command
		}
	}
	return byName
}

// awayCommand is a command in a message: its name in the service's table, and the text after it.
type awayCommand struct {
	name string
	rest string
}

func (c awayCommand) leadsHome() bool { return c.name == "supervisor" || c.name == "reset" }

// parseCommand returns the command that a message is; false for ordinary text.
func parseCommand(message string) (awayCommand, bool) {
	text := []rune(message)
	start := skipUnseen(text, 0, "¿¡")
	if start == len(text) || text[start] != '/' && text[start] != '／' {
		return awayCommand{}, false
	}
	start++
	end := start
	for end < len(text) && end-start <= commandNameMax && isOfName(text[end]) {
		end++
	}
	name, known := awayCommands[foldName(text[start:end])]
	rest, ends := afterName(text[end:])
	if !known || !ends {
		return awayCommand{}, false
	}
	if name != "agent" && !strings.ContainsFunc(rest, isAlnum) {
		rest = ""
	}
	return awayCommand{name, rest}, true
}

// reply returns what is shown for a command while the service is away, and its language.
func (c awayCommand) reply(locale string) (text, language string) {
	texts := notNow
	if c.leadsHome() {
		texts = backHome
	}
	language, _, _ = strings.Cut(strings.ToLower(strings.ReplaceAll(locale, "_", "-")), "-")
	if _, ok := texts[language]; !ok {
		language = "en"
	}
	return texts[language], language
}

func isAlnum(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }

func isUnseen(r rune) bool {
	return unicode.Is(unicode.Cf, r) || r == '\u034f' || r >= '\ufe00' && r <= '\ufe0f'
}

func isOfName(r rune) bool {
	return isAlnum(r) || r == '_' || r == '-' || isUnseen(r) || unicode.Is(unicode.Mn, r)
}

func foldName(word []rune) string {
	var folded strings.Builder
	for _, r := range word {
		switch {
		case r >= '\u2100' && r <= '\u214f':
			return string(word) // Signs that Unicode folds to letters, and that are none.
		case isUnseen(r):
			continue
		case r >= '\uff01' && r <= '\uff5e':
			r -= 0xfee0
		}
		folded.WriteRune(unicode.ToLower(r))
	}
	return plainLetters.Replace(folded.String())
}

func skipUnseen(text []rune, place int, also string) int {
	for place < len(text) && (unicode.IsSpace(text[place]) || isUnseen(text[place]) || strings.ContainsRune(also, text[place])) {
		place++
	}
	return place
}

// afterName returns what follows a name; false if the name goes on, as a path or a longer word does.
func afterName(text []rune) (string, bool) {
	place := 0
	for place < len(text) && (strings.ContainsRune(commandPunctuation, text[place]) || isUnseen(text[place]) ||
		unicode.In(text[place], unicode.So, unicode.Sk)) {
		place++
	}
	if place < len(text) && !unicode.IsSpace(text[place]) {
		if place == 0 || !strings.ContainsRune(commandTight, text[place-1]) || !unicode.IsLetter(text[place]) {
			return "", false
		}
		return string(text[place:]), true
	}
	rest := text[skipUnseen(text, place, ""):]
	end := 0
	for end < len(rest) && strings.ContainsRune(commandSeparators, rest[end]) {
		end++
	}
	if end > 0 && (end == len(rest) || unicode.IsSpace(rest[end])) {
		rest = rest[skipUnseen(rest, end, ""):]
	}
	return string(rest), true
}
