// The newest steps as a table: what the drawing shows, as text.

import { nanoseconds } from "../model/format";
import { steps } from "../state";

/** As many as one reads. */
const SHOWN = 20;

export function StepTable() {
  const newest = steps.value.slice(-SHOWN).reverse();
  return (
    <details class="step-table">
      <summary>The newest steps as a table</summary>
      <div class="table-scroll" tabIndex={0} role="region" aria-label="The newest steps">
        <table>
          <thead>
            <tr>
              <th>Step</th>
              <th>Requests</th>
              <th>Tokens</th>
              <th>Of prompts</th>
              <th>Drafts</th>
              <th>Accepted</th>
              <th>Plan</th>
              <th>Device</th>
              <th>Idle before</th>
            </tr>
          </thead>
          <tbody>
            {newest.map((step) => (
              <tr key={step.step}>
                <td>{step.step}</td>
                <td>{step.rows}</td>
                <td>{step.tokens}</td>
                <td>{step.prompt_tokens}</td>
                <td>{step.drafted}</td>
                <td>{step.accepted}</td>
                <td>{nanoseconds(step.plan[1] - step.plan[0])}</td>
                <td>{nanoseconds(step.device[1] - step.device[0])}</td>
                <td class={step.idle_ns ? "idle-cell" : undefined}>
                  {step.idle_ns === null ? "no work" : nanoseconds(step.idle_ns)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}
