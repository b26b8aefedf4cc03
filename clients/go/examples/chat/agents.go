package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/agent-routing/go/v1"
)

// The tax example's agents, as scripts: they need no model and no network. An agent gets a
// dispatch, and returns its answer and how its turn ended. A real one would call a model and report
// the same. The examples of the other clients have the same agents, with the same texts.

// answer is an agent's answer, as the request that reports it; the sender fills in the ids.
type answer = *v1.CompleteTurnRequest

const vatRate = 0.21

var (
	number = regexp.MustCompile(`\d[\d.,]*`)
	due    = regexp.MustCompile(`(?i)\b(when|due|deadline)\b`)
	vat    = regexp.MustCompile(`(?i)\bvat\b`)
	// The agent for a message, by terms in its text; the first match counts.
	specialists = []struct {
		agentID string
		words   *regexp.Regexp
	}{
		{"filing", regexp.MustCompile(`(?i)\b(file it|file my|submit)\b`)},
		{"payroll", regexp.MustCompile(`(?i)\b(payroll|wages|employees?)\b`)},
		{"invoices", regexp.MustCompile(`(?i)\binvoices?\b`)},
		{"vat", vat},
		{"income_tax", regexp.MustCompile(`(?i)\b(income tax|tax return|deduct\w*)\b`)},
	}
)

// answerOf returns the answer of a dispatch's agent.
func answerOf(dispatch *v1.Dispatch) answer {
	text := dispatch.GetText()
	switch dispatch.GetAgent().GetAgentId() {
	case "coordinator":
		for _, each := range specialists {
			if each.words.MatchString(text) {
				return handOver(each.agentID, "One moment, I bring in our specialist.", "what the message is about")
			}
		}
		return say("Hello! Ask me about VAT, income tax, invoices or payroll.")
	case "vat":
		if found := number.FindString(text); found != "" {
			amount, err := strconv.ParseFloat(strings.ReplaceAll(found, ",", ""), 64)
			if err == nil {
				return say(fmt.Sprintf("That makes %.2f € of VAT.", amount*vatRate))
			}
		}
		if due.MatchString(text) {
			return say("By the 20th after the quarter's end.")
		}
		if dispatch.GetLocked() {
			return ask("A number is all I need: what did you sell, without VAT?")
		}
		return ask("What did you sell this quarter, without VAT?")
	case "income_tax":
		if vat.MatchString(text) {
			return handOver("vat", "VAT is for a colleague of mine.", "VAT is for a colleague of mine.")
		}
		return ask("What did you earn last year, before tax?")
	case "invoices":
		if vat.MatchString(text) {
			return handOver("vat", "VAT is for a colleague of mine.", "VAT is for a colleague of mine.")
		}
		return say("All your invoices are paid, but for F-1023, which is due next week.")
	case "payroll":
		return say("Two employees: their payslips are ready for you to look at.")
	case "filing":
		return &v1.CompleteTurnRequest{
			Text: "Filed. You get the receipt by mail.", Outcome: &v1.CompleteTurnRequest_Complete{Complete: &v1.CompleteOutcome{}},
		}
	}
	return say("I am here, and have nothing to say.")
}

// afterRefusal returns an agent's answer after its handoff was refused.
func afterRefusal(rules []string) answer {
	for _, rule := range rules {
		if rule == "entitled" {
			return say("That needs the premium plan. Can I help with something else?")
		}
	}
	return say("I cannot bring in that colleague now. Can I help you myself?")
}

func say(text string) answer {
	return &v1.CompleteTurnRequest{Text: text, Outcome: &v1.CompleteTurnRequest_Proceed{Proceed: &v1.ProceedOutcome{}}}
}

func ask(text string) answer {
	return &v1.CompleteTurnRequest{Text: text, Outcome: &v1.CompleteTurnRequest_FollowUp{
		FollowUp: &v1.FollowUpOutcome{Timeout: durationpb.New(10 * time.Minute)},
	}}
}

func handOver(agentID, text, reason string) answer {
	return &v1.CompleteTurnRequest{Text: text, Outcome: &v1.CompleteTurnRequest_Handoff{
		Handoff: &v1.HandoffOutcome{AgentId: agentID, Reason: reason},
	}}
}
