// Command chat is a chat in the terminal, with the tax example's agents as scripts.
//
//	go run ./examples/chat [-target 127.0.0.1:50051] [-session ID] [-user ana] [-locale en]
//
// Start the service with `make run`. Lines are read until the input ends, so that a story can be piped
// in.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	agentrouting "example.com/agent-routing/go"
)

func main() {
	target := flag.String("target", envOr("AGENT_ROUTING_TARGET", "127.0.0.1:50051"), "the service")
	session := flag.String("session", "chat-"+agentrouting.NewUUID7(), "the session")
	user := flag.String("user", "ana", "the user")
	locale := flag.String("locale", "en", "the user's language")
	flag.Parse()
	// The screen already shows that it is degraded.
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	client, err := agentrouting.NewClient(*target, agentrouting.WithLogger(quiet))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	defer client.Close()
	isTerminal := isCharacterDevice(os.Stdin)
	screen := &screen{isColored: os.Getenv("NO_COLOR") == "" && (isCharacterDevice(os.Stdout) || os.Getenv("FORCE_COLOR") != "")}
	talk := &conversation{client: client, sessionID: *session, userID: *user, locale: *locale, screen: screen}
	if isTerminal {
		fmt.Println(screen.dim("session " + *session + " at " + *target + "; /status, /agents, /supervisor"))
	}
	lines := bufio.NewScanner(os.Stdin)
	for prompt(isTerminal); lines.Scan(); prompt(isTerminal) {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		if !isTerminal {
			fmt.Println("> " + text)
		}
		if err := talk.say(context.Background(), text); err != nil {
			fmt.Println("  " + wordsOf(err))
		}
	}
}

func prompt(isTerminal bool) {
	if isTerminal {
		fmt.Print("> ")
	}
}

// wordsOf returns the text of an error for a person.
func wordsOf(err error) string {
	var failure *agentrouting.RoutingError
	if errors.As(err, &failure) {
		return failure.Message
	}
	return err.Error()
}

func isCharacterDevice(file *os.File) bool {
	found, err := file.Stat()
	return err == nil && found.Mode()&os.ModeCharDevice != 0
}

func envOr(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
