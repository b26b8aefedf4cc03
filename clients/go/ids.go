package agentrouting

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// NewUUID7 returns a UUID of version 7 (RFC 9562): milliseconds since 1970, then random bits. The
// client generates missing request and session ids this way.
func NewUUID7() string {
	var raw [16]byte
	// Never fails: since Go 1.24 the program ends if the system has no randomness.
	_, _ = rand.Read(raw[6:])
	milliseconds := uint64(time.Now().UnixMilli())
	for place := 0; place < 6; place++ {
		raw[place] = byte(milliseconds >> (8 * (5 - place)))
	}
	raw[6] = raw[6]&0x0f | 0x70
	raw[8] = raw[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[0:8], raw[0:4])
	hex.Encode(text[9:13], raw[4:6])
	hex.Encode(text[14:18], raw[6:8])
	hex.Encode(text[19:23], raw[8:10])
	hex.Encode(text[24:36], raw[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}
