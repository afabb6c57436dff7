package browser

import (
	"context"

	"github.com/clawjail/clawjail/internal/problem"
)

// batch does one action after the other in the same tab. An action that fails is told in its place, and ends the batch
// unless the caller wants to go on.
func (m *acting) batch(ctx context.Context, a Act) (ActResult, error) {
	stop := a.StopOnError == nil || *a.StopOnError
	result := ActResult{OK: true, Results: make([]ActStep, 0, len(a.Actions))}
	for _, action := range a.Actions {
		step := m.step(ctx, action)
		result.Results = append(result.Results, step)
		if !step.OK {
			result.OK = false
			// Without time, everything that follows would fail too.
			if stop || ctx.Err() != nil {
				break
			}
		}
	}
	return result, nil
}

func (m *acting) step(ctx context.Context, a Act) ActStep {
	result, err := m.perform(ctx, a)
	step := ActStep{OK: err == nil && result.OK, Kind: a.Kind, Value: result.Value}
	switch {
	case err != nil:
		err = explain(err, "act: "+a.Kind)
		step.Error, step.Code = "the action failed", problem.CodeOf(err)
		if e, ok := problem.As(err); ok {
			step.Error = e.Message
			if e.Hint != "" {
				step.Error += " (" + e.Hint + ")"
			}
		}
	case a.Kind == "batch":
		step.Value = result.Results
		if !result.OK {
			step.Error, step.Code = "an action of this batch failed", problem.ActOperationFailed
		}
	}
	return step
}
