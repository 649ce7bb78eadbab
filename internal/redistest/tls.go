package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TLSServer is a Server with a second port for TLS.
type TLSServer struct {
	*Server
	port  string
	roots *x509.CertPool
}

// StartTLS starts a redis-server with its own certificate for one test. A binary that was built
// without TLS counts as missing.
func StartTLS(t testing.TB) *TLSServer {
	t.Helper()
	needBinary(t)
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	cert, key, roots, err := certificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server, err := start(t.TempDir(), []string{
		"--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no",
	})
	if err != nil {
		missing(t, "redis-server with TLS: "+err.Error())
	}
	t.Cleanup(server.Kill)
	return &TLSServer{Server: server, port: port, roots: roots}
}

// TLSOptions returns the options of a client that trusts s, with go-redis' defaults.
func (s *TLSServer) TLSOptions() *redis.Options {
	return &redis.Options{
		Addr:      "127.0.0.1:" + s.port,
		TLSConfig: &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12},
	}
}

// certificate writes a certificate for the loopback address, valid for an hour, and its key to files
// in dir. The certificate is its own root.
func certificate(dir string) (certFile, keyFile string, roots *x509.CertPool, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return "", "", nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", nil, err
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	roots = x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	if err = os.WriteFile(certFile, text, 0o600); err != nil {
		return "", "", nil, err
	}
	return certFile, keyFile, roots, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600)
}
