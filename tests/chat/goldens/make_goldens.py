"""Writes chat.json: templates, conversations, and what transformers makes of
them. Run with a Python that has transformers; the tests need none.

  make_goldens.py > chat.json
"""
import datetime
import json
import random

from transformers.utils import chat_template_utils as utils

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5)


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


utils.datetime = FixedTime

# The template styles of several model families, each with its specialty.
FAMILIES = {
    "chatml": """\
{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    "thoughts": """\
{%- set ns = namespace(open=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.open and message.role == "user" and message.content is string and not (message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
""",
    "headers": """\
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|h|>system<|/h|>\\n\\nToday: " + date_string + "\\n\\n" }}
{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{%- endif %}
{{- system_message + "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|h|>' + message['role'] + '<|/h|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at a time") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|h|>assistant<|/h|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}<|eot|>" }}
    {%- else %}
        {{- "<|h|>ipython<|/h|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
""",
    "members": """\
{%- for m in messages %}{{ m | tojson }}{{ m.content }}{{ 'content' in m }}{{ m.name }}
{% if 'tool_calls' in m %}{% generation %}{{ m.tool_calls }}{% endgeneration %}{% endif %}
{%- endfor %}
""",
    "turns": """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
""",
    "inst": """\
{%- set loop_messages = messages | rejectattr('role', 'equalto', 'system') | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (messages[0].content + '\\n\\n' if loop.first and messages[0].role == 'system' else '') + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content|trim + eos_token }}
    {%- else %}{{- raise_exception('Only user, system and assistant roles: ' + message.role) }}{%- endif %}
{%- endfor %}
""",
    "ends": """\
{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "generation": """\
{% macro words(message) %}{{ message.content }}{% endmacro %}
{% for message in messages -%}
{{ '<|' ~ message.role ~ '|>' }}
{% if message.role == 'assistant' -%}
{% generation %}{{ message.content ~ eos_token }}{% endgeneration %}
{% else %}{{ words(message) }}
{% endif %}
{%- endfor %}
""",
    "parts": """\
{%- macro show(content) -%}
  {%- if content is string -%}{{ content }}
  {%- else -%}{%- for item in content -%}{%- if item.type == 'text' -%}{{ item.text }}{%- else -%}<{{ item['type'] }}>{%- endif -%}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
  {{- (m.role | capitalize) ~ ':' -}}
  {%- if loop.previtem is defined and loop.previtem.role == m.role %} (again){%- endif %}
  {{ show(m.content) }}<end_of_utterance>
{% endfor -%}
""",
}
# Expressions whose values say how they were understood.
EXPRESSIONS = [
    "1 + 2 * 3 - 4", "7 // 2, -7 // 2, 7 % 3, -7 % 3", "7 / 2, 4 / 2", "2 ** 10",
    "1 < 2 < 3, 1 < 2 > 3", "'a' ~ 1 ~ none ~ true", "not false and false or true",
    "[1, 'a', 2.5, none, true, {'k': [1]}]", "'it\\'s' + \"\\\"\"", "['it\\'s']", "x is defined, x is undefined, x",
    "x | default('d'), none | default('d'), '' | default('d', true)", "'abcdef'[1:4], 'abcdef'[::-1], 'abcdef'[-2:], 'äöü'[1]",
    "[1,2,3][1:], [1,2,3][::-1], [1,2,3][-1], [1,2,3][5]", "'a' in 'abc', 'd' not in 'abc', 1 in [1], 'k' in {'k': 1}",
    "'  a '.strip() ~ '|', '  a'|trim, 'xxaxx'.strip('x'), 'xxa'.lstrip('x'), 'axx'.rstrip('x')",
    "'a,b,,c'.split(','), ' a  b '.split(), 'a-b-c'.split('-', 1), 'a\\nb'.splitlines()",
    "'a' if false, 'b' if true else 'c'", "({'b': 1, 'a': 2} | dictsort)[0][0], ({'b': 1}|items|list)[0][1]",
    "[3,1,2]|sort, ['b','A','c']|sort, [1,1,2]|unique|list, [1,2]|reverse|list", "['a','b']|join('-'), [1,2]|join",
    "messages|map(attribute='role')|join(','), messages|selectattr('role','equalto','user')|list|length, [1,2,3]|select('odd')|list",
    "'x'|upper, 'HeLLo'|lower, 'hello world'|title, 'hELLO'|capitalize, 'ÄÖ'|lower", "'a.b'.replace('.', '-'), 'aaa'|replace('a','b',2)",
    "1 is number, 1.5 is float, 1 is integer, true is integer, 'a' is string, {} is mapping, [] is sequence, 'a' is iterable, none is none, 4 is even, 4 is divisibleby 2",
    "{'a': 'é\\n\"', 'b': [1, 2.0, none, true]} | tojson, {'b': 1, 'a': {}} | tojson(indent=2), [] | tojson(indent=2), {'b':1,'a':2}|tojson(sort_keys=true), [1,2]|tojson(separators=(',', ':'))",
    "range(3)|list, range(5, 1, -2)|list", "namespace(a=1).a, dict(a=1)", "'%s' | string, 1.0 | string, 1e3 | int, '12' | int, 'x' | int", "1.5 + 1, 3 | abs, -3 | abs",
    "'abc'|first, [1,2]|last, 'abc'|length, {}|length, x|length", "'a\\nb'|indent(2), 'a\\nb'|indent(2, true)", "'ab' * 3, [0] * 2", "messages[0].role.upper(), messages[0]['role']|length",
    "messages[0].get('nothing'), messages[0].get('nothing', 'd')", "'a' < 'b', 'B' < 'a'", "'\\u00e9\\x41\\t|'",
    "true and 'yes', none or 'no', 0 or [], '' and 1", "'x'.startswith(('a', 'x')), 'file.py'.endswith('.py')", "'abc'.find('c'), 'aXbX'.count('X')",
    "'voilà à\u2003日…\u00a0x\u0085y'.split(), ' a b  c  '.split(none, 1), ' a  '.split(maxsplit=1), ' '.split(none, 0), ' à b '.split(none, 0)",
    "'tool_response'|title, \"it's a-b (c {d [e <f\"|title, 'aB1c d.e,f'|title, 5|title, 'it\\'s_a'.title()",
    "['a','A','b',1,1.0,true]|unique|list, ['a','A']|unique(true)|list, ['a','A']|unique(case_sensitive=true)|list, [{'x':'a'},{'x':'A'}]|unique(attribute='x')|list, x|unique|list",
    "'3.7'|int, ' 42 '|int, '-3.7'|int, '1e3'|int, '+5'|int, '+-5'|int, '1_000'|int, '1__0'|int, 'x'|int(7), 'x'|int(none), none|int, [1]|int(3), '1e400'|int, 'nan'|int, '007'|int",
    "'12345678901234567890'|int, '-0012345678901234567890'|int, '1e19'|int, 1e30|int, -1e30|int, true|int, -2.9|int",
    "none|float, '1e400'|float, '-1e400'|float, 'nan'|float, '1_0.5'|float, ' +2.5 '|float, 'inf'|float, 'x'|float(2.5), '.5'|float, '5.'|float, '+-5'|float, '1e-400'|float, 'nan(1)'|float", "x|int", "x|int(3)", "x|float",
    "[3,1,2]|sort(true), ['b','A','a','B']|sort(false, true), ['b','A','a','B']|sort(true)",
    r"'\101\33[0m|\0|\08|\377|\7777', '\q\8'", "['\u00a0\u0085\xad', '\u200b\ufeff\u2028\u2029', 'é日😀\\ud83d\U000E0001\uE000\u0378 ~\x7f', '\u3000\u202f']",
    "1 is sameas true, true is sameas true, 1 is sameas 1, 'a' is sameas 'a', none is sameas none, 1 is sameas 1.5",
    "'a\u0085b\u2028c\x0bd\r\n\ne\x1cà'.splitlines(), 'ab\r\nc\r'.splitlines(true)|join('|')", "'a'.split('')",
]
# Scopes and white space.
STATEMENTS = [
    "{% set a = 1 %}{% for i in [1, 2] %}{% set a = 5 %}{{ a }}{% endfor %}{{ a }}",
    "{% if true %}{% set a = 1 %}{% endif %}{{ a }}", "{% for i in [] %}x{% else %}none{% endfor %}",
    "{% for i in range(5) if i is odd %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a %}text {{ 1 }}{% endset %}{{ a | upper }}", "{% filter upper %}abc{% endfilter %}",
    "{% macro m(a, b='x') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}{{ m() }}",
    "{% macro m() %}{{ messages[0].role }}{{ late }}{% endmacro %}{% set late = 3 %}{{ m() }}",
    "  {% if true %}  \n  a\n  {% endif %}\nb\n", "a\n  {%- if true -%}  \n b {%- endif %} c\n\n", "{# note #}\na {#- x -#} b\n", "x {{- 1 -}} y\n{{ 2 }}\nz",
    "  {{ 1 }}\n  {%+ if true %}\nq{% endif +%}\n r", "{% for a in [1,2] %}\n{{ a }}\n{% endfor %}\n\n",
    "{% for i in [1,2,3] %}{{ loop.cycle('a','b') }}{{ loop.first }}{{ loop.revindex0 }}{% endfor %}", "{{ '{{' }}{{ \"%}\" }}\r\nx\r\n",
    "{% set ns = namespace(a=0) %}{% for i in [1,2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "a\u00a0\u2003\x1c {{- 'x' -}} \u00a0\u3000\u0085\x1fb", "a\u00a0{%- if 1 -%}\u00a0b{%- endif %}c\u200b{#- c -#}\u00a0d", "a\n\u00a0 {% if 1 %}b{% endif %}", "\u00a0\n{%\u00a0if 1\u2003%}{{\u00a01\u00a0}}{% endif %}à{{- 2 }}",
    "{{ 'a\nb aÉß\u00a0c'|title }}",
    "{% for i in [1,2] %}{% break %}{% else %}E{% endfor %}", "{% for i in [1,2] %}{% if i==2 %}{% break %}{% endif %}x{% else %}E{% endfor %}", "{% for i in [1,2] %}{% continue %}x{% else %}E{{ i }}{% endfor %}",
    "{% for i in [1] if i>1 %}x{% else %}E{% endfor %}", "{% for i in [1,2] %}{% if i==1 %}{% continue %}{% endif %}{% break %}{% else %}E{{ loop }}{% endfor %}",
    "{% for i in [1,2] %}{% for j in [] %}{% else %}{% break %}{% endfor %}x{% else %}E{% endfor %}",
    "{% set q = 0 %}{% generation %}{% set q = 1 %}{{ q }}{% endgeneration %}[{{ q }}]",
    "{% for m in messages %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{{ 'a\\\nb' }}{{ '''' }}", "{{ 'a\\\nb\\\r\nc' }}", "{{ {'copy': 1}.copy is number }}{{ {'update': 1}.update is defined }}{{ {'pop': 1}['pop'] }}{{ {'a': 1}.copy() }}", "{{ {'update': 1}.update() }}",
    "{{ undefined_name.attribute }}", "{{ 'a' + 1 }}", "{% for i in 5 %}{% endfor %}", "{{ raise_exception('stop') }}",
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "Does <b> & \"c\"", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}}]
WORDS = ["Hello", " world", "\n", "  edge ", "ü日本😀", "<think>\na\n</think>\n\n", "'\"\\", "", "</think>"]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def conversations(random_numbers):
    def words():
        return "".join(random_numbers.choice(WORDS) for _ in range(random_numbers.randint(0, 4)))

    chats = []
    for number in range(6):
        chat = [{"role": "system", "content": words()}] if number % 2 else []
        for _ in range(random_numbers.randint(1, 3)):
            chat += [{"role": "user", "content": words()}, {"role": "assistant", "content": words()}]
        chats.append(chat)
    chats[0][-1]["reasoning_content"] = "because"
    chats[2] = chats[2][:-1]
    chats[3].append({"role": "assistant", "content": [{"type": "text", "text": " parts "}, {"type": "image"}]})
    chats[4][-1]["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": {"n": 1, "s": "ü\n"}}}]
    chats[4].append({"role": "tool", "content": {"ok": True}})
    chats.append([
        {"role": "user", "content": "Q", "name": None},
        {"role": "assistant", "content": None, "tool_calls": chats[4][-2]["tool_calls"], "reasoning_content": None, "thinking": "t", "reasoning": "r"},
        {"role": "tool", "content": {"ok": None}, "tool_calls": None},
        {"role": "assistant", "content": "A", "reasoning": "r", "tool_calls": None}])
    return chats


def entry(template, chat, tools=None, add_generation_prompt=False, **variables):
    result = {"template": template, "messages": chat, "tools": tools, "add_generation_prompt": add_generation_prompt, "variables": variables}
    has_generation = "generation %}" in template
    try:
        # As apply_chat_template() calls it.
        given = [{key: value for key, value in message.items() if value is not None} for message in chat]
        texts, ranges = utils.render_jinja_template(
            [given], tools=tools, chat_template=template, add_generation_prompt=add_generation_prompt,
            return_assistant_tokens_mask=has_generation, **TOKENS, **variables)
        result["text"] = texts[0]
        if has_generation:
            result["generation"] = [[len(texts[0][:end].encode()) for end in pair] for pair in ranges[0]]
    except Exception as error:  # whatever it is, ours refuses too
        result["refused"] = str(error)
    return result


def main():
    chats = conversations(random.Random(1))
    entries = []
    for template in FAMILIES.values():
        for number, chat in enumerate(chats):
            entries.append(entry(template, chat, TOOLS if number == 3 else None, number == 2, **({"enable_thinking": False} if number == 2 else {})))
    for expressions in EXPRESSIONS:
        entries.append(entry("{{ [" + expressions + "] }}", chats[0]))
    for template in STATEMENTS:
        entries.append(entry(template, chats[0]))
    now = int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp())
    lines = ",\n".join(json.dumps(e, ensure_ascii=False) for e in entries)
    print(f'{{"special_tokens": {json.dumps(TOKENS)}, "now": {now}, "entries": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
