# Copyright 2026 pi0_ros contributors. Licensed under the Apache License 2.0.
"""
From an instruction to token ids, as the checkpoint's trainer cleaned and tokenised it.

PaliGemma's convention: pad 0, eos 1, bos 2. The real tokenizer is PaliGemma's, from the
checkpoint's folder or a hub id; small ones with the same convention are built for small models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pi0_ros.errors import Pi0RosError

PAD, EOS, BOS = 0, 1, 2
PALIGEMMA = 'google/paligemma-3b-pt-224'
"""Hub id of the tokenizer of every published pi0 checkpoint."""

_FILES = ('tokenizer.json', 'tokenizer.model', 'paligemma_tokenizer.model')
_log = logging.getLogger(__name__)


class PromptError(Pi0RosError):
    """An instruction or tokenizer that cannot be used."""


def clean_prompt(prompt: str, family: str) -> str:
    """
    Return the text as its family tokenises it, newline at the end included.

    openpi strips, turns ``_`` and inner newlines into spaces; LeRobot only appends the newline
    where there is none, transformers' processor always.

    :raises PromptError: for an empty instruction, which no checkpoint was trained on.
    """
    _refuse_empty(prompt)
    if family.startswith('openpi'):
        return _openpi_clean(prompt) + '\n'
    if family == 'transformers':
        return prompt + '\n'
    return prompt if prompt.endswith('\n') else prompt + '\n'


def state_bins(state: np.ndarray) -> np.ndarray:
    """Return pi0.5's 256 bins of a normalised state; below -1 is bin -1, as in openpi."""
    edges = np.linspace(-1.0, 1.0, 257)[:-1]
    return np.digitize(np.asarray(state), edges) - 1


def pi05_text(prompt: str, state: np.ndarray) -> str:
    """Return pi0.5's text of an instruction and a normalised, unpadded state."""
    _refuse_empty(prompt)
    bins = ' '.join(map(str, state_bins(state)))
    return f'Task: {_openpi_clean(prompt)}, State: {bins};\nAction: '


def _openpi_clean(prompt: str) -> str:
    return prompt.strip().replace('_', ' ').replace('\n', ' ')


def _refuse_empty(prompt: str) -> None:
    if not isinstance(prompt, str):
        raise PromptError(f'the instruction is {type(prompt).__name__}, no text')
    if not prompt.replace('_', ' ').strip():
        raise PromptError('the instruction is empty; say what to do, such as "pick up the cube"')


class PromptTokenizer:
    """
    Token ids of instructions, with the last one remembered.

    :param encode: text -> ids, without special tokens.
    :param family: decides cleaning, see :func:`clean_prompt`.
    :param length: tokens that the checkpoint was trained with.
    :param truncate: a longer text loses its tail, as in openpi and LeRobot from 0.4 on; False:
        it stays whole, as in LeRobot 0.1 to 0.3 and transformers. A warning either way.
    :param vocab: ids that the model embeds; None: not checked.
    """

    def __init__(
        self, encode: Callable[[str], list[int]], family: str, length: int = 48,
        truncate: bool = True, vocab: int | None = None,
    ):  # fmt: skip
        self._encode, self.family, self.length = encode, family, length
        self._truncate, self._vocab = truncate, vocab
        self._last: tuple[str, np.ndarray] | None = None

    def __call__(self, prompt: str, state: np.ndarray | None = None) -> np.ndarray:
        """
        Return the ids of an instruction, int64 [L], without padding.

        :param state: normalised, unpadded; for pi0.5, whose text holds it.
        :raises PromptError: for an empty instruction, or ids that the model does not have.
        """
        key = prompt if state is None else pi05_text(prompt, state)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        if state is not None:
            ids = [BOS, *self._encode(key)]
        elif self.family.startswith('openpi'):
            text = clean_prompt(prompt, self.family)
            ids = [BOS, *self._encode(text[:-1]), *self._encode('\n')]
        else:
            ids = [BOS, *self._encode(clean_prompt(prompt, self.family))]
        if len(ids) > self.length:
            _log.warning(
                'the instruction has %d tokens, the checkpoint was trained with %d; its end is %s:'
                ' %r', len(ids), self.length,
                'cut off' if self._truncate else "kept, as its trainer's code does",
                prompt[-40:],
            )  # fmt: skip
            ids = ids[: self.length] if self._truncate else ids
        if self._vocab is not None and max(ids) >= self._vocab:
            raise PromptError(
                f'the tokenizer gives id {max(ids)}, the model has {self._vocab} tokens; it is '
                "another model's tokenizer"
            )
        self._last = key, np.array(ids, dtype=np.int64)
        return self._last[1]


def load_encoder(source: str | Path) -> Callable[[str], list[int]]:
    """
    Return text -> ids of a tokenizer, without special tokens.

    :param source: a folder with ``tokenizer.json`` or a sentencepiece ``*.model``, one of these
        files, or a hub id.
    :raises PromptError: when there is none.
    """
    path = Path(source)
    if path.is_dir():
        for name in _FILES:
            if (path / name).is_file():
                return load_encoder(path / name)
        raise PromptError(
            f'{path} holds no tokenizer.json or tokenizer.model; put those of {PALIGEMMA} there'
        )
    if path.is_file():
        try:
            return _file_encoder(path)
        except Exception as error:  # both libraries raise bare Exception or RuntimeError
            raise PromptError(f'{path}: no readable tokenizer ({error})') from None
    return _hub_encoder(str(source))


def _file_encoder(path: Path) -> Callable[[str], list[int]]:
    if path.suffix == '.json':
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda text: processor.encode(text)


def _hub_encoder(name: str) -> Callable[[str], list[int]]:
    from huggingface_hub import hf_hub_download

    reason = ''
    for file in _FILES[:2]:
        try:
            return _file_encoder(Path(hf_hub_download(name, file)))
        except Exception as error:  # of the hub, of the network, of the file: a family of dozens
            lines = str(error).strip().splitlines()
            reason = reason or (lines[0][:160] if lines else type(error).__name__)
            if type(error).__name__ not in ('EntryNotFoundError', 'RemoteEntryNotFoundError'):
                break  # no network or no leave to read: the next file fares no better
    raise PromptError(
        f"tokenizer '{name}' cannot be loaded ({reason}); put its tokenizer.json or "
        'tokenizer.model beside the weights, or log in to the hub'
    )


def build_byte_tokenizer():
    """Return a ``tokenizers.Tokenizer`` with one token a byte: any text, 260 ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ['<pad>', '<eos>', '<bos>', '<unk>', *letters]
    tokenizer = Tokenizer(models.BPE({n: i for i, n in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def build_word_tokenizer(texts):
    """Return a ``tokenizers.Tokenizer`` whose tokens are the words of some instructions."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    words = sorted({word for text in texts for word in text.split()})
    names = ['<pad>', '<eos>', '<bos>', '<unk>', '\n', *words]
    tokenizer = Tokenizer(
        models.WordLevel({name: i for i, name in enumerate(names)}, unk_token='<unk>')
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(['<pad>', '<eos>', '<bos>', '<unk>'])
    tokenizer.add_tokens([AddedToken('\n', normalized=False)])
    return tokenizer
