from __future__ import annotations

import contextlib
import math
import resource
import threading

import pytest

from inference.text import ChatTemplateError, sandbox
from inference.text.sandbox import BoundedTemplate


@pytest.fixture
def timeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is what a template does, on any machine."""
    monkeypatch.setattr(sandbox, "MAX_SECONDS", math.inf)


def code_of(source: str) -> str:
    with pytest.raises(ChatTemplateError) as raised:
        BoundedTemplate(source).render(messages=[{"role": "user", "content": "hi"}])
    return raised.value.code


ESCAPES = [
    "{{ ''.__class__ }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ range.__globals__['json'] }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '%s' % 1 }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages.clear() }}",
    "{{ ().__class__.__base__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ [1]|map(attribute='__class__')|list|first() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends 'x' %}",
    "{{ 10**9 }}",
    "{{ nothing.here }}",
    "{{ 1 / 0 }}",
    "{{ messages[7].content }}",
    "{{ [1] + 1 }}",
    "{% if %}",
    "{{ 'a'|center(1000000000) }}",
    "{{ 'a'.ljust(1000000000) }}",
    "{{ 'a'.zfill(1000000000) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '\\t'.expandtabs(1000000000) }}",
    "{{ [1]|batch(1000000000, 0)|list }}",
    "{{ [1]|slice(1000000000)|list }}",
    "{{ 'a'|indent(1000000000) }}",
]

BOMBS = [
    "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
    "{% for a in range(10000000000) %}{% endfor %}",
    "{% for a in range(10000000) %}x{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for a in [[[]]] recursive %}{{ loop([a]) }}{% endfor %}",
    "{{ 'a' * 10000000000 }}",
    "{{ [1] * 10000000000 }}",
    "{{ 10000000000 * 'a' }}",
    "{{ 'a' * 1000000 * 1000000 }}",
    "{% set ns = namespace(x=7) %}{% for a in range(1000) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for a in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}{% for a in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for a in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aa') %}{% for a in range(100) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='aa') %}{% for a in range(100) %}{% set ns.x = ns.x|replace('a', ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='aa') %}{% for a in range(100) %}{% set ns.x = ns.x.join([ns.x, ns.x, ns.x]) %}{% endfor %}",
    "{% set ns = namespace(x='aa') %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x, ns.x]|join(ns.x) %}{% endfor %}",
    "{% set x = 'a' * 1000 %}" + "{% set x %}{{ x }}{{ x }}{{ x }}{% endset %}" * 40,
    "{% set ns = namespace(l=[], x='a' * 100000) %}{% for a in range(5000) %}{% set ns.l = ns.l + [ns.x[1:]] %}{% endfor %}",
    "{% for a in range(5000) %}{% set y = range(5000)|list %}{% endfor %}",
    "{% for a in range(5000) %}{% set y = range(5000)|map('string')|join %}{% endfor %}",
    "{% set ns = namespace(x=[]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
    "{% set ns = namespace(x=[]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x ~ '' }}",
    "{% set ns = namespace(x=[]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|string }}",
    "{% set ns = namespace(x=[], y=[]) %}{% for a in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
    "{% endfor %}{{ ns.x == ns.y }}",
    "{{ 'a'|tojson(indent=100000000) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "-" * 50_000 + "1 }}",
    "{# " + "x" * 300_000 + " #}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_reaches_nothing_but_its_values(source: str) -> None:
    """What does not exist is empty, as anywhere in Jinja; using it is an error."""
    written = ""
    with contextlib.suppress(ChatTemplateError):
        written = BoundedTemplate(source).render(messages=[{"role": "user", "content": "hi"}])
    assert written == ""


@pytest.mark.usefixtures("timeless")
@pytest.mark.parametrize("source", BOMBS, ids=lambda source: source[:60])
def test_a_template_that_would_run_or_grow_without_end_is_stopped(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert code_of(source) in ("chat_template_limit", "chat_template_failed")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 * 1024  # KiB


def test_a_template_that_takes_too_long_for_its_few_steps_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(sandbox, "MAX_STEPS", math.inf)
    monkeypatch.setattr(sandbox, "MAX_VOLUME", math.inf)
    assert code_of("{% for a in range(10000000000) %}{% endfor %}") == "chat_template_limit"


def test_what_a_template_raises_is_the_clients_fault_and_public() -> None:
    with pytest.raises(ChatTemplateError) as raised:
        BoundedTemplate("{{ raise_exception('roles must alternate') }}").render()
    assert raised.value.code == "chat_template_refused"
    assert "roles must alternate" in raised.value.public


def test_private_detail_of_a_failure_is_not_public() -> None:
    with pytest.raises(ChatTemplateError) as raised:
        BoundedTemplate("{{ secret_name_inside.field }}").render()
    assert "secret_name_inside" not in raised.value.public
    assert "secret_name_inside" in str(raised.value)


def test_what_real_templates_use_works() -> None:
    source = """
{%- set ns = namespace(found=false, index=0) -%}
{%- macro show(m) -%}[{{ m.role | upper }}:{{ m['content'] | trim }}]{%- endmacro -%}
{%- for m in messages[::-1] -%}
    {%- if m.role == 'tool' %}{% continue %}{% endif -%}
    {%- set ns.index = ns.index + 1 -%}
    {{- show(m) ~ (' ' if not loop.last else '') -}}
    {%- if m.role == 'stop' %}{% break %}{% endif -%}
{%- endfor -%}
{{- ' ' ~ ns.index ~ ' ' ~ ({'b': 'ü'} | tojson) ~ ' ' ~ (messages | selectattr('role', 'equalto', 'user') | list | length) -}}
{{- ' ' + ['x', 'y'] | join(', ') + ' a-b'.split('-')[1] + 'aXb'.replace('X', '.') -}}
{%- if messages is defined and messages[0] is mapping and 'role' in messages[0] %} ok{% endif -%}
"""
    rows = [{"role": "user", "content": " hi "}, {"role": "tool", "content": "t"}, {"role": "assistant", "content": "yo"}]
    assert BoundedTemplate(source).render(messages=rows) == '[ASSISTANT:yo] [USER:hi] 2 {"b": "ü"} 1 x, yba.b ok'


def test_blocks_are_trimmed_as_transformers_trims_them() -> None:
    assert BoundedTemplate("a\n  {% if true %}\n  b\n  {% endif %}\nc").render() == "a\n  b\nc"


def test_a_failed_rendering_leaves_the_template_usable() -> None:
    template = BoundedTemplate("{% for a in range(n) %}x{% endfor %}")
    with pytest.raises(ChatTemplateError):
        template.render(n=10**9)
    assert template.render(n=3) == "xxx"


@pytest.mark.usefixtures("timeless")
def test_threads_render_one_template_at_once_each_with_its_own_budget() -> None:
    template = BoundedTemplate("{% for a in range(40000) %}x{% endfor %}")  # together more steps than one budget has
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(len(template.render()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [40_000] * 8
