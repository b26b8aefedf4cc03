package agentrouting

import (
	"slices"
	"strings"
	"unicode"
)

const (
	markerGap           = " \t\r\n\\*_`~\"'["
	markerDress         = "*_`~\"'({<«“"
	markerUndress       = "*_`~\"')}>»”"
	markerHeld          = " \t\r\n\\" + markerDress
	markerAfterUnclosed = " \t*_`~\"')}>|\\"
	markerWord          = ".:@=;+-_"

	markerGapMax  = 40
	markerNameMax = 256
	// Of spaces, quotes and signs of emphasis that may stand in front of a marker.
	markerHeldMax = 64

	noMarker    = -1
	maybeMarker = -2
)

// MarkerFilter takes handoff markers out of streamed text, so that a user who reads along never sees
// one flash. Text is held back only while it may become a marker, or may dress one up. The
// service's own text, in the answer to CompleteTurn, is the last word.
//
// The zero value filters one answer. Feed it each token, show what it returns, then what End
// returns.
type MarkerFilter struct {
	text    []rune // Not shown yet.
	last    rune   // The last character that was shown; 0: none.
	closers []rune // What may still be around the last marker.
	isAfter bool
}

// Feed returns what may be shown by now.
func (f *MarkerFilter) Feed(token string) string {
	f.text = append(f.text, []rune(token)...)
	return f.flow(false)
}

// End returns the rest, once there are no more tokens.
func (f *MarkerFilter) End() string { return f.flow(true) }

func (f *MarkerFilter) flow(isEnd bool) string {
	var shown strings.Builder
	for {
		if f.isAfter && !f.tidy(isEnd) {
			return shown.String()
		}
		plain := alike(f.text)
		start, end := findMarker(plain, isEnd)
		if end < 0 {
			kept := len(plain)
			if !isEnd {
				kept = heldFrom(plain, start)
			}
			shown.WriteString(f.show(kept))
			return shown.String()
		}
		dressed := start
		for dressed > 0 && strings.ContainsRune(markerDress, plain[dressed-1]) && start-dressed < markerGapMax {
			dressed--
		}
		f.closers = nil
		for place := start - 1; place >= dressed; place-- {
			sign := slices.Index([]rune(markerDress), plain[place])
			f.closers = append(f.closers, []rune(markerUndress)[sign])
		}
		rest := f.text[end:]
		for dressed > 0 && (f.text[dressed-1] == ' ' || f.text[dressed-1] == '\t') {
			dressed--
		}
		shown.WriteString(f.show(dressed))
		f.text, f.isAfter = rest, true
	}
}

func (f *MarkerFilter) show(count int) string {
	text := f.text[:count]
	f.text = f.text[count:]
	if count > 0 {
		f.last = text[count-1]
	}
	return string(text)
}

// tidy drops what is left of a marker's dress; false: that shows with the next token.
func (f *MarkerFilter) tidy(isEnd bool) bool {
	place := 0
	plain := alike(f.text)
	for ; place < len(plain); place++ {
		if plain[place] == ']' || plain[place] == '\\' {
			continue
		}
		if len(f.closers) == 0 || plain[place] != f.closers[0] {
			break
		}
		f.closers = f.closers[1:]
	}
	f.text, plain = f.text[place:], plain[place:]
	if f.last == 0 || f.last == '\n' {
		line := 0
		for line < len(plain) && (plain[line] == ' ' || plain[line] == '\t') {
			line++
		}
		isOpen := line == len(plain) || line == len(plain)-1 && plain[line] == '\r'
		if isOpen && !isEnd {
			return false
		}
		if line+1 < len(plain) && plain[line] == '\r' && plain[line+1] == '\n' {
			line += 2
		} else if line < len(plain) && plain[line] == '\n' {
			line++
		}
		f.text = f.text[line:]
	} else if len(plain) == 0 && !isEnd {
		return false
	}
	f.isAfter, f.closers = false, nil
	return true
}

// alike returns a text as long, with signs that mean the same written in one way.
func alike(text []rune) []rune {
	plain := slices.Clone(text)
	for place, sign := range plain {
		switch {
		case sign >= 0xff01 && sign <= 0xff5e:
			plain[place] = sign - 0xfee0
		case strings.ContainsRune("【〔⟦", sign):
			plain[place] = '['
		case strings.ContainsRune("】〕⟧", sign):
			plain[place] = ']'
		case strings.ContainsRune("\u00a0\u202f\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f", sign):
			plain[place] = ' '
		}
	}
	return plain
}

// findMarker returns where a marker begins and ends; its end is maybeMarker if more text decides, or
// noMarker.
func findMarker(plain []rune, isEnd bool) (start, end int) {
	for start, sign := range plain {
		if sign != '[' {
			continue
		}
		end := markerEnd(plain, start, isEnd)
		if end == noMarker {
			continue
		}
		for start > 0 && plain[start-1] == '\\' {
			start--
		}
		return start, end
	}
	return len(plain), noMarker
}

func markerEnd(plain []rune, start int, isEnd bool) int {
	unknown := maybeMarker
	if isEnd {
		unknown = noMarker
	}
	place := skipMarkerGap(plain, start+1)
	for _, letters := range []string{"handoff", "to"} {
		said := plain[place:min(len(plain), place+len(letters))]
		if !strings.HasPrefix(letters, strings.ToLower(string(said))) {
			return noMarker
		}
		if len(said) < len(letters) {
			return unknown
		}
		place += len(letters)
		for letters == "handoff" && place < len(plain) && strings.ContainsRune("_\\ -", plain[place]) {
			place++
		}
	}
	place = skipMarkerGap(plain, place)
	if place >= len(plain) {
		return unknown
	}
	if plain[place] != ':' && plain[place] != '=' {
		return noMarker
	}
	return markerNameEnd(plain, place+1, isEnd)
}

func skipMarkerGap(plain []rune, place int) int {
	stop := min(len(plain), place+markerGapMax)
	for place < stop && strings.ContainsRune(markerGap, plain[place]) {
		place++
	}
	return place
}

// markerNameEnd returns where a marker ends whose name begins at start, maybeMarker if more text
// decides.
func markerNameEnd(plain []rune, start int, isEnd bool) int {
	lineEnd, place := -1, start
scan:
	for ; place < len(plain); place++ {
		switch plain[place] {
		case ']':
			return place + 1
		case '[':
			break scan
		case '\r', '\n':
			if lineEnd >= 0 && strings.TrimSpace(string(plain[lineEnd:place])) != "" {
				break scan
			}
			if lineEnd < 0 && strings.TrimSpace(string(plain[start:place])) != "" {
				lineEnd = place
			}
		}
		if place-max(start, lineEnd) >= markerNameMax {
			break
		}
	}
	if place >= len(plain) && !isEnd {
		return maybeMarker
	}
	if lineEnd >= 0 {
		place = lineEnd
	}
	return unclosedMarkerEnd(plain, start, place)
}

// unclosedMarkerEnd returns where the text goes on behind a marker without a bracket at its end.
func unclosedMarkerEnd(plain []rune, start, end int) int {
	place := start
	for place < end && strings.ContainsRune(markerAfterUnclosed, plain[place]) {
		place++
	}
	for place < end && (unicode.IsLetter(plain[place]) || unicode.IsNumber(plain[place]) || strings.ContainsRune(markerWord, plain[place])) {
		place++
	}
	rest := place
	for rest < end && strings.ContainsRune(markerAfterUnclosed, plain[rest]) {
		rest++
	}
	if rest == end {
		return end
	}
	return place
}

// heldFrom returns from where a text is held back: a marker may begin at start, or behind its end.
func heldFrom(plain []rune, start int) int {
	place := start
	for place > 0 && start-place < markerHeldMax && strings.ContainsRune(markerHeld, plain[place-1]) {
		place--
	}
	return place
}
