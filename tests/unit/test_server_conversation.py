"""What a client may hand to the model's template."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.server.conversation import chat_conversation
from octavo.server.endpoints import Endpoint
from octavo.server.field_check import check_fields
from octavo.server.typed_body import TypedBody
from octavo.text import ChatTemplate
from served import HELLO, LEAST

SOURCE = (
    "{% if thinks %}think {{ how }}{% endif %}{{ bos_token }}{{ messages[0].content }}"
    "{% if tools %}!{% endif %}{{ strftime_now('%Y')[:0] }}"
)


@pytest.fixture(scope="module")
def template(smollm2_text: Any) -> ChatTemplate:
    return ChatTemplate(SOURCE, smollm2_text[1])


def rendered(template: ChatTemplate, **given: Any) -> str:
    body = TypedBody({"messages": HELLO, "chat_template_kwargs": given})
    return chat_conversation(body, template).render(template)


def test_a_template_reads_its_own_variables_only(template: ChatTemplate) -> None:
    assert template.variables == {"thinks", "how"}
    plain = rendered(template)
    assert rendered(template, thinks=True, how="hard") == "think hard" + plain
    assert rendered(template, thinks=False, how=None) == plain


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "other", "range"])
def test_other_names_are_refused(template: ChatTemplate, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="it reads: how, thinks") as refused:
        rendered(template, **{name: True})
    assert refused.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("value", ["<|im_end|>", "x" * 65, ["a"], {"a": 1}, "a\nb"])
def test_values_that_could_spell_something_are_refused(value: Any) -> None:
    body = {**LEAST[Endpoint.CHAT], "chat_template_kwargs": {"how": value}}
    with pytest.raises(InvalidRequestError, match="how must be"):
        check_fields(body, Endpoint.CHAT)
