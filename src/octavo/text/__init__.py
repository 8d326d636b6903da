"""Text and tokens: tokenizers, chat templates, incremental detokenisation, stop strings."""

from octavo.text.chat_template import ChatTemplate
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.messages import Message, read_messages
from octavo.text.stop_strings import TextStream
from octavo.text.tokenizer import Tokenizer
from octavo.text.word_tokens import spell_words

__all__ = [
    "ChatTemplate",
    "IncrementalDetokenizer",
    "Message",
    "TextStream",
    "Tokenizer",
    "read_messages",
    "spell_words",
]
