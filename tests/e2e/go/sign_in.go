// A generated client over TLS that signs in with a token.
// Usage: sign_in HOST PORT CA_FILE TOKEN_FILE NAMESPACE
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"foqs"

	"github.com/apache/thrift/lib/go/thrift"
)

var namespace string

func done(isRight bool, what string) {
	if !isRight {
		fmt.Fprintln(os.Stderr, "failed: "+what)
		os.Exit(1)
	}
	fmt.Println("ok: " + what)
}

func trusting(caFile string) *x509.CertPool {
	pem, err := os.ReadFile(caFile)
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(pem) {
		fmt.Fprintln(os.Stderr, "no authority in", caFile, err)
		os.Exit(1)
	}
	return pool
}

func connect(pool *x509.CertPool, host, port string) (*foqs.FoqsClient, error) {
	settings := &thrift.TConfiguration{
		ConnectTimeout: 5 * time.Second,
		SocketTimeout:  15 * time.Second, // above wait_ms
		TLSConfig:      &tls.Config{RootCAs: pool, ServerName: host},
	}
	socket := thrift.NewTSSLSocketConf(net.JoinHostPort(host, port), settings)
	frames := thrift.NewTFramedTransportConf(socket, settings)
	protocol := thrift.NewTBinaryProtocolConf(frames, settings)
	client := foqs.NewFoqsClient(thrift.NewTStandardClient(protocol, protocol))
	return client, frames.Open()
}

func enqueue(ctx context.Context, client *foqs.FoqsClient) (*foqs.EnqueueResponse, error) {
	item := foqs.NewNewItem_()
	item.Topic, item.Payload = "go", []byte("hello")
	request := foqs.NewEnqueueRequest()
	request.NamespaceName, request.Items = namespace, []*foqs.NewItem_{item}
	return client.Enqueue(ctx, request)
}

func isDenied(err error) bool {
	var refused *foqs.FoqsError
	return errors.As(err, &refused) && refused.Code == foqs.ErrorCode_PERMISSION_DENIED
}

func main() {
	ctx := context.Background()
	host, port, pool := os.Args[1], os.Args[2], trusting(os.Args[3])
	token, err := os.ReadFile(os.Args[4])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	namespace = os.Args[5]

	stranger, err := connect(pool, "127.0.0.1", port) // the certificate is for localhost alone
	if err == nil {
		_, err = enqueue(ctx, stranger)
	}
	done(err != nil && !isDenied(err), "a certificate of another name is refused")

	unknown, err := connect(pool, host, port)
	done(err == nil, "the certificate of the host is good")
	_, err = enqueue(ctx, unknown)
	done(isDenied(err), "a caller without a token is refused")
	_, err = unknown.Authenticate(ctx, &foqs.AuthenticateRequest{Token: "foqs_wrong"})
	done(isDenied(err), "a wrong token is refused")

	known, err := connect(pool, host, port)
	done(err == nil, "a second connection is good")
	me, err := known.Authenticate(ctx, &foqs.AuthenticateRequest{Token: string(bytes.TrimSpace(token))})
	done(err == nil && me.GetPrincipal() == "mailer", "a caller with a token is known")
	stored, err := enqueue(ctx, known)
	done(err == nil && len(stored.Errors) == 0, "it does what its permissions say")
	for _, group := range []string{"", "archive"} {
		dequeue := foqs.NewDequeueRequest()
		dequeue.NamespaceName, dequeue.WaitMs = namespace, 5_000
		dequeue.Topics = []*foqs.TopicDemand{{Topic: "go", Count: 1, Group: thrift.StringPtr(group)}}
		got, err := known.Dequeue(ctx, dequeue)
		isHello := err == nil && len(got.Items) == 1 && string(got.Items[0].Payload) == "hello"
		done(isHello, "the group '"+group+"' has a copy")
		ack := foqs.NewAckRequest()
		ack.NamespaceName, ack.Receipts = namespace, []string{got.Items[0].Receipt}
		acked, err := known.Ack(ctx, ack)
		done(err == nil && len(acked.Errors) == 0, "and it is acked")
	}
	namespace = "other"
	_, err = enqueue(ctx, known)
	done(isDenied(err), "and nothing else")
}
