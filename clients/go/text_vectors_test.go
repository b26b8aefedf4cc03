package agentrouting

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestCommandsAreReadAsTheServiceReadsThem(t *testing.T) {
	written, err := os.ReadFile("../../tests/clients/vectors/text/commands.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Cases []struct {
			Text       string
			Name, Rest *string
		}
	}
	if err := json.Unmarshal(written, &vectors); err != nil || len(vectors.Cases) < 60 {
		t.Fatal("no vectors", err)
	}
	for _, each := range vectors.Cases {
		command, found := parseCommand(each.Text)
		if found != (each.Name != nil) || found && (command.name != *each.Name || command.rest != *each.Rest) {
			t.Errorf("%q: %+v %v", each.Text, command, found)
		}
	}
}

func TestTheHomeAgentIsKeptInAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "home")
	first := newKnownAgents(Fallback{HomeFile: path})
	first.learnHome("coordinator")
	if second := newKnownAgents(Fallback{HomeFile: path}); second.homeID != "coordinator" {
		t.Errorf("the next process knows %q", second.homeID)
	}
	newKnownAgents(Fallback{HomeFile: filepath.Join(path, "no folder")}).learnHome("coordinator")
}

func TestAnOpenCircuitLetsOneProbeThrough(t *testing.T) {
	broken := &circuit{logger: slog.New(slog.DiscardHandler)}
	for range circuitFailuresMax {
		if _, limited := broken.limit(); limited {
			t.Error("it is open too early")
		}
		broken.failed()
	}
	if wait, limited := broken.limit(); !limited || wait != 0 {
		t.Error("it is not open")
	}
	broken.probeAt = time.Now()
	if wait, _ := broken.limit(); wait != circuitProbe {
		t.Error("there is no probe")
	}
	if wait, limited := broken.limit(); !limited || wait != 0 || broken.report().State != CircuitHalfOpen {
		t.Error("there are two probes")
	}
	broken.succeeded()
	if got := broken.report(); got != (Circuit{State: CircuitClosed, Opened: 1, Skipped: 2}) {
		t.Errorf("%+v", got)
	}
}

func TestAMarkerIsNeverShown(t *testing.T) {
	written, err := os.ReadFile("../../tests/clients/vectors/text/markers.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Cases []struct{ Text, Shown string }
	}
	if err := json.Unmarshal(written, &vectors); err != nil || len(vectors.Cases) < 200 {
		t.Fatal("no vectors", err)
	}
	for _, each := range vectors.Cases {
		for _, size := range []int{1, 2, 7, 10_000} {
			var filter MarkerFilter
			shown := ""
			for token := range slices.Chunk([]rune(each.Text), size) {
				shown += filter.Feed(string(token))
			}
			if shown += filter.End(); shown != each.Shown {
				t.Errorf("%q in tokens of %d: %q, expected %q", each.Text, size, shown, each.Shown)
			}
		}
	}
}
