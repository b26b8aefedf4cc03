package agentrouting

import (
	"context"
	"crypto/tls"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// Version of this module, sent as part of the user agent. Equal to the service's version.
const Version = "0.2.0"

const (
	// DefaultTimeout is how long a user waits for the routing decision, before the client decides by
	// itself.
	DefaultTimeout = 5 * time.Second
	// Error details are at most 4 KB, and the message next to them is percent-encoded.
	metadataBytesMax = 32 << 10
	// The service accepts pings on an idle connection at most every 30 s.
	keepaliveTime    = 60 * time.Second
	keepaliveTimeout = 20 * time.Second
	// A restarted service is back within a second, and a user waits. gRPC's own waits are 1 s to two
	// minutes.
	reconnectFirst = 100 * time.Millisecond
	reconnectMax   = 5 * time.Second
	connectTimeout = 5 * time.Second
	// Spreads calls over the replicas that report themselves ready.
	replicatedConfig = `{"loadBalancingConfig": [{"round_robin": {}}],
		"healthCheckConfig": {"serviceName": "agent_routing.v1.RoutingService"}}`
)

type settings struct {
	timeout     time.Duration
	retry       RetryPolicy
	fallback    *Fallback
	tenant      string
	metadata    [][2]string
	credentials credentials.TransportCredentials
	tokens      []grpc.DialOption
	dial        []grpc.DialOption
	logger      *slog.Logger
}

// Option is a setting of a client.
type Option func(*settings)

// WithTimeout sets how long a call may take with all its attempts if its context has no deadline.
// Default: DefaultTimeout.
func WithTimeout(timeout time.Duration) Option {
	return func(s *settings) { s.timeout = timeout }
}

// WithRetry sets how often and when an unanswered call is sent again.
func WithRetry(policy RetryPolicy) Option {
	return func(s *settings) { s.retry = policy }
}

// WithFallback sets what Route may decide while the service cannot be reached.
func WithFallback(fallback Fallback) Option {
	return func(s *settings) { s.fallback = &fallback }
}

// WithoutFallback makes Route fail while the service cannot be reached.
func WithoutFallback() Option {
	return func(s *settings) { s.fallback = nil }
}

// WithTenant sets the tenant, for a service without sign-in. With sign-in the credential names it.
func WithTenant(tenant string) Option {
	return func(s *settings) { s.tenant = tenant }
}

// WithMetadata sends a key and a value with every call.
func WithMetadata(key, value string) Option {
	return func(s *settings) { s.metadata = append(s.metadata, [2]string{key, value}) }
}

// WithTLS encrypts the connection. config nil: the system's certificate authorities. Without
// WithTLS the connection is plain text, for loopback and meshes.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) { s.credentials = credentials.NewTLS(config) }
}

// TokenSource returns a token for a call, without "Bearer ". It is called for each attempt, so it
// can reuse a token while it is valid. An error fails the call as UNAUTHENTICATED.
type TokenSource func(ctx context.Context) (string, error)

// WithTokens signs in each call with a token, over TLS only.
func WithTokens(source TokenSource) Option {
	return withTokens(tokens{source: source, tlsOnly: true})
}

// WithInsecureTokens signs in over plain text too: for a mesh that encrypts the traffic, and for
// tests. Others on the way can read the token.
func WithInsecureTokens(source TokenSource) Option {
	return withTokens(tokens{source: source})
}

func withTokens(from tokens) Option {
	return func(s *settings) { s.tokens = []grpc.DialOption{grpc.WithPerRPCCredentials(from)} }
}

type tokens struct {
	source  TokenSource
	tlsOnly bool
}

func (t tokens) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	token, err := t.source(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

func (t tokens) RequireTransportSecurity() bool { return t.tlsOnly }

// WithDialOptions passes options to gRPC; they override the client's own.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// WithLogger sets the logger for route_degraded (a warning), call_repeated and watch_resumed
// (debug). Default: slog.Default().
func WithLogger(logger *slog.Logger) Option {
	return func(s *settings) { s.logger = logger }
}

// CallInfo has facts about a call that are not in its answer. Pass one with WithInfo, and read it
// afterwards.
type CallInfo struct {
	// Attempts is how often the request was sent.
	Attempts int
	// Replayed tells whether the answer is the stored answer to an earlier request with this
	// request_id; this call then changed nothing.
	Replayed bool
}

type callSettings struct {
	info, also  *CallInfo
	awayTimeout time.Duration
}

// CallOption is a setting of one call.
type CallOption func(*callSettings)

// WithInfo makes a call fill in info.
func WithInfo(info *CallInfo) CallOption {
	return func(s *callSettings) { s.info = info }
}

// WithAwayTimeout sets how long the service may be away before a watch ends with an error. Default:
// DefaultAwayTimeout.
func WithAwayTimeout(timeout time.Duration) CallOption {
	return func(s *callSettings) { s.awayTimeout = timeout }
}

func dialOptions(target string, s *settings) []grpc.DialOption {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(s.credentials),
		grpc.WithUserAgent("agent-routing-go/" + Version),
		// The client repeats calls itself: it knows which are safe, and the service's delays.
		grpc.WithDisableRetry(),
		grpc.WithMaxHeaderListSize(metadataBytesMax),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnectFirst, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMax},
			MinConnectTimeout: connectTimeout,
		}),
	}
	if strings.HasPrefix(target, "dns:") {
		options = append(options, grpc.WithDefaultServiceConfig(replicatedConfig))
	}
	options = append(options, s.tokens...)
	return append(options, s.dial...)
}
