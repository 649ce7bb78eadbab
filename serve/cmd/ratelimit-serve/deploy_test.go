package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/ratelimit-go/ratelimit/serve"
	"github.com/ratelimit-go/ratelimit/store/memstore"
)

const deploy = "../../deploy/"

// ports are those of arguments, which the program must take, by what they are for.
func ports(t *testing.T, args []string) (set *settings, byName map[string]string) {
	t.Helper()
	var out bytes.Buffer
	set, err := parse(args, &out, &out)
	require.NoError(t, err, &out)
	byName = map[string]string{}
	for name, address := range map[string]string{"http": set.http, "grpc": set.grpc, "private": set.private} {
		host, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		require.Empty(t, host, "%s: others could not reach it", name)
		byName[name] = port
	}
	return set, byName
}

// exists reports whether a path of the private port does.
func exists(t *testing.T, path string) {
	t.Helper()
	rules, err := serve.Parse(serve.File{Name: "f", Text: []byte("domain: d")})
	require.NoError(t, err)
	mem, err := memstore.New()
	require.NoError(t, err)
	s, err := serve.New(mem, rules)
	require.NoError(t, err)
	w := httptest.NewRecorder()
	s.Private(nil).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	require.Equal(t, http.StatusOK, w.Code, path)
}

func readDeploy(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(deploy + name)
	require.NoError(t, err)
	return text
}

// The image has the program alone, which listens on the ports that the file names.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	text := string(readDeploy(t, "Dockerfile"))
	argument := func(instruction string) string {
		all := regexp.MustCompile(`(?m)^`+instruction+` (.*)$`).FindAllStringSubmatch(text, -1)
		require.NotEmpty(t, all, instruction)
		return all[len(all)-1][1]
	}
	require.Equal(t, "scratch", argument("FROM"))
	require.NotContains(t, argument("USER"), "root")
	require.Contains(t, argument("RUN"), "GOOS=$TARGETOS GOARCH=$TARGETARCH CGO_ENABLED=0 go build")
	require.DirExists(t, path.Join(deploy, "..", argument("RUN")[strings.LastIndexByte(argument("RUN"), ' ')+1:]))
	var entry, args []string
	require.NoError(t, json.Unmarshal([]byte(argument("ENTRYPOINT")), &entry))
	require.NoError(t, json.Unmarshal([]byte(argument("CMD")), &args))
	require.True(t, strings.HasSuffix(argument("COPY"), " "+entry[0]))
	_, byName := ports(t, args)
	require.ElementsMatch(t, strings.Fields(argument("EXPOSE")), []string{byName["http"], byName["grpc"], byName["private"]})
}

func TestCompose(t *testing.T) {
	t.Parallel()
	var file struct {
		Services map[string]struct {
			Build          struct{ Context, Dockerfile string }
			Image          string
			Command, Ports []string
			Volumes        []string
			StopGrace      string   `yaml:"stop_grace_period"`
			ReadOnly       bool     `yaml:"read_only"`
			CapDrop        []string `yaml:"cap_drop"`
			Restart        string
		}
	}
	require.NoError(t, yaml.Unmarshal(readDeploy(t, "compose.yaml"), &file))
	service := file.Services["ratelimit"]
	set, byName := ports(t, service.Command)
	var published []string
	for _, p := range service.Ports {
		parts := strings.Split(p, ":")
		require.Equal(t, "127.0.0.1", parts[0], "nobody is asked for a password")
		published = append(published, parts[2])
	}
	require.ElementsMatch(t, published, []string{byName["http"], byName["grpc"], byName["private"]})
	require.FileExists(t, path.Join(deploy, service.Build.Context, service.Build.Dockerfile))
	store, err := url.Parse(set.store)
	require.NoError(t, err)
	require.Contains(t, file.Services, store.Hostname())
	from, to, _ := strings.Cut(strings.TrimSuffix(service.Volumes[0], ":ro"), ":")
	require.Equal(t, set.config.String(), to)
	files, err := serve.ReadFiles(path.Join(deploy, from))
	require.NoError(t, err)
	_, err = serve.Parse(files...)
	require.NoError(t, err)
}

// manifest has the fields of the three kinds that are there.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     struct {
		Replicas  int
		ClusterIP string `yaml:"clusterIP"`
		Selector  map[string]any
		Ports     []struct {
			Name       string
			TargetPort string `yaml:"targetPort"`
			Port       int
		}
		Template struct {
			Metadata struct{ Labels map[string]any }
			Spec     struct {
				Grace      int            `yaml:"terminationGracePeriodSeconds"`
				Security   map[string]any `yaml:"securityContext"`
				Containers []container
				Volumes    []struct {
					Name      string
					ConfigMap struct{ Name string } `yaml:"configMap"`
				}
			}
		}
	}
}

type container struct {
	Name, Image string
	Args        []string
	Ports       []struct {
		Name string
		Port int `yaml:"containerPort"`
	}
	Liveness  probe `yaml:"livenessProbe"`
	Readiness probe `yaml:"readinessProbe"`
	Lifecycle struct {
		PreStop struct{ Sleep struct{ Seconds int } } `yaml:"preStop"`
	}
	Resources map[string]any
	Security  map[string]any `yaml:"securityContext"`
	Mounts    []struct {
		Name     string
		Path     string `yaml:"mountPath"`
		ReadOnly bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	Get     struct{ Path, Port string } `yaml:"httpGet"`
	Timeout int                         `yaml:"timeoutSeconds"`
}

func TestKubernetes(t *testing.T) {
	t.Parallel()
	byKind := map[string]manifest{}
	loader, err := yaml.NewLoader(bytes.NewReader(readDeploy(t, "kubernetes.yaml")))
	require.NoError(t, err)
	for {
		var m manifest
		if err := loader.Load(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		byKind[m.Kind] = m
	}
	require.Len(t, byKind, 3)
	pod, service := byKind["Deployment"].Spec.Template, byKind["Service"].Spec
	require.Equal(t, map[string]any{"matchLabels": pod.Metadata.Labels}, byKind["Deployment"].Spec.Selector)
	require.Equal(t, pod.Metadata.Labels, service.Selector)
	one := pod.Spec.Containers[0]
	image, _, _ := strings.Cut(one.Image, ":")
	release, err := os.ReadFile("../../../.github/workflows/release.yml")
	require.NoError(t, err)
	require.Contains(t, string(release), "IMAGE: "+image+" ", "nobody publishes this image")
	set, byName := ports(t, one.Args)
	require.Greater(t, pod.Spec.Grace, one.Lifecycle.PreStop.Sleep.Seconds+int(set.drain.Seconds()))
	named := map[string]string{}
	for _, p := range one.Ports {
		named[p.Name] = strconv.Itoa(p.Port)
	}
	require.Equal(t, byName, named)
	for _, p := range service.Ports {
		require.Equal(t, byName[p.TargetPort], strconv.Itoa(p.Port))
		require.NotEqual(t, "private", p.TargetPort)
	}
	for _, p := range []probe{one.Liveness, one.Readiness} {
		require.Equal(t, "private", p.Get.Port)
		exists(t, p.Get.Path)
	}
	require.Equal(t, set.config.String(), one.Mounts[0].Path)
	require.Equal(t, one.Mounts[0].Name, pod.Spec.Volumes[0].Name)
	require.Equal(t, byKind["ConfigMap"].Metadata.Name, pod.Spec.Volumes[0].ConfigMap.Name)
	for name, text := range byKind["ConfigMap"].Data {
		require.Equal(t, ".yaml", path.Ext(name))
		_, err := serve.Parse(serve.File{Name: name, Text: []byte(text)})
		require.NoError(t, err)
	}
}
