package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// process is a child process. On Linux it does not outlive this one.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

func startProcess(name string, args []string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.SysProcAttr = dieWithParent()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stopped reports whether p is stopped. known is false if /proc does not show it.
func (p *process) stopped() (stopped, known bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid()))
	if err != nil {
		return false, false
	}
	_, after, known := strings.Cut(string(text), ") ")
	return strings.HasPrefix(after, "T"), known
}

func (p *process) signal(sig os.Signal) { _ = p.cmd.Process.Signal(sig) }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the process, stopped or not, and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}
