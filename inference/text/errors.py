"""Errors of the text room. `public` may be shown to a client; `str(error)` may hold private detail and belongs in a log."""

from __future__ import annotations


class TextError(Exception):
    """Base of the room's errors. `code` is stable and fit for a client's program."""

    code = "text_error"

    def __init__(self, public: str, *, code: str | None = None, detail: str = "") -> None:
        super().__init__(f"{public} ({detail})" if detail else public)
        self.public = public
        self.code = code or type(self).code


class ModelFolderError(TextError):
    """The model's files are missing, damaged or of a kind that is not supported.

    checkpoint_file_missing   a file that the folder needs, or that its index names
    checkpoint_damaged        a file that cannot be read as what it is: cut off, no JSON, offsets out of range or over one another
    checkpoint_path_outside   a name or a link that leads out of the folder
    checkpoint_pickled        weights that only pickle could read
    checkpoint_architecture   a model that the decoder does not know
    checkpoint_config         a value of config.json that is absurd, contradicts another, or asks for what the decoder cannot do
    checkpoint_tensor         a tensor that is missing, too many, or of another shape or kind than config.json says
    checkpoint_computation    weights whose answer is no number
    checkpoint_tokenizer      a tokenizer that is damaged, not supported, or larger than the embedding
    """

    code = "model_folder_invalid"


class UnknownTokenError(TextError):
    """A token id outside the vocabulary."""

    code = "token_id_unknown"


class ChatTemplateError(TextError):
    """The chat could not be rendered.

    chat_template_refused   the template says that these messages do not fit (the client's fault)
    chat_role_unknown       a role that no template is given (the client's fault)
    chat_template_limit     the template took too many steps, too much time or memory
    chat_template_failed    the template itself is at fault
    chat_template_missing   the model has none (the client's fault: it only completes texts)
    """

    code = "chat_template_failed"


class ModelFetchError(TextError):
    """The model could not be fetched, stored or removed; the text says what to do.

    model_unknown, model_damaged, model_name_taken, hub_model_unknown, hub_unreachable
    """

    code = "model_fetch_failed"
