// What a conversation asks of the server: every option that it offers, with its default.

import { useId } from "preact/hooks";
import { changeSettings, resetSettings } from "../actions";
import { boundsOf, COMMON, type Option } from "../model/options";
import { engine, fields, options, settings } from "../state";

const TOOL_EXAMPLE = `[{"type": "function", "function": {
  "name": "throw", "parameters": {"type": "object",
  "properties": {"ball": {"enum": ["red", "blue"]}}}}}]`;

const SCHEMA_EXAMPLE = `{"type": "object",
 "properties": {"colour": {"type": "string"}}}`;

export function SettingsForm() {
  const { system, tools, toolChoice, schema, speculation } = settings.value;
  const [common, more] = [options.value.filter(isCommon), options.value.filter((option) => !isCommon(option))];
  const changed = more.filter(({ name }) => (settings.value.options[name] ?? "") !== "").length;
  const methods = engine.value?.speculation.configuration.methods ?? [];
  return (
    <form class="settings" onSubmit={(event) => event.preventDefault()}>
      <Area name="system" label="System prompt" value={system} rows={3} placeholder="How the model should answer" />
      <fieldset>
        <legend>Sampling</legend>
        <div class="option-grid">
          {common.map((option) => (
            <OptionField key={option.name} option={option} />
          ))}
        </div>
        <label class="field">
          <span class="field-name">speculation</span>
          <select value={speculation} onChange={(event) => changeSettings({ speculation: event.currentTarget.value })}>
            <option value="">as the server was started</option>
            {methods.map((method) => (
              <option key={method} value={method}>
                {method}
              </option>
            ))}
          </select>
        </label>
        <details>
          <summary>
            More options <small>{changed > 0 ? `${changed} set` : more.length}</small>
          </summary>
          {more.map((option) => (
            <OptionField key={option.name} option={option} />
          ))}
        </details>
      </fieldset>
      <Area name="schema" label="Answer as JSON (schema)" value={schema} rows={4} placeholder={SCHEMA_EXAMPLE} code />
      <Area name="tools" label="Tools (JSON)" value={tools} rows={7} placeholder={TOOL_EXAMPLE} code />
      <label class="field">
        <span class="field-name">tool_choice</span>
        <select value={toolChoice} onChange={(event) => changeSettings({ toolChoice: event.currentTarget.value })}>
          {["auto", "required", "none"].map((choice) => (
            <option key={choice}>{choice}</option>
          ))}
        </select>
      </label>
      <button type="button" class="plain" onClick={resetSettings}>
        Back to the server's defaults
      </button>
    </form>
  );
}

const isCommon = ({ name }: Option) => COMMON.includes(name);

interface AreaProps {
  name: "system" | "tools" | "schema";
  label: string;
  value: string;
  rows: number;
  placeholder: string;
  code?: boolean;
}

function Area({ name, label, value, rows, placeholder, code = false }: AreaProps) {
  const error = fields.value.errors[name];
  return (
    <label class="field wide">
      <span class="field-label">{label}</span>
      <textarea
        class={code ? "code-input" : undefined}
        rows={rows}
        spellcheck={!code}
        placeholder={placeholder}
        aria-invalid={error !== undefined}
        value={value}
        onInput={(event) => changeSettings({ [name]: event.currentTarget.value })}
      />
      {error !== undefined && <span class="field-error">{error}</span>}
    </label>
  );
}

/** What is sent where the person says nothing, or a word for it. */
function defaultOf(name: string): string {
  const known = engine.value?.sampling.page[name]?.value;
  if (known === undefined || known === null) return name === "seed" ? "random" : "default";
  return typeof known === "object" ? JSON.stringify(known) : String(known);
}

/** Who says so: the model's files, the server's flags, or Paceline. */
function sourceOf(name: string): string {
  const source = engine.value?.sampling.page[name]?.source;
  return source === undefined ? "" : `default from ${source}`;
}

function OptionField({ option }: { option: Option }) {
  const { name, kind, help } = option;
  const id = useId();
  const error = fields.value.errors[name];
  const title = [help, boundsOf(option), sourceOf(name)].filter((part) => part !== "").join(" · ");
  return (
    <div class="field" title={title}>
      <label class="field-name" for={id}>
        {name}
      </label>
      <OptionInput option={option} id={id} wrong={error !== undefined} />
      {error !== undefined && <span class="field-error">{error}</span>}
      {error === undefined && kind !== "number" && !isCommon(option) && <span class="help">{help}</span>}
    </div>
  );
}

function OptionInput({ option: { name, kind }, id, wrong }: { option: Option; id: string; wrong: boolean }) {
  const value = settings.value.options[name] ?? "";
  const set = (event: { currentTarget: { value: string } }) =>
    changeSettings({ options: { ...settings.value.options, [name]: event.currentTarget.value } });
  if (kind === "flag") {
    return (
      <select id={id} value={value} onChange={set}>
        <option value="">{defaultOf(name)}</option>
        <option value="true">true</option>
        <option value="false">false</option>
      </select>
    );
  }
  if (kind === "texts") return <textarea id={id} rows={2} placeholder="One per line" value={value} onInput={set} />;
  return (
    <input
      id={id}
      inputMode={kind === "number" ? "decimal" : "text"}
      placeholder={defaultOf(name)}
      aria-invalid={wrong}
      value={value}
      onInput={set}
    />
  );
}
