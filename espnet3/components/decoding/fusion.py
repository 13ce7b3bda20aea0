"""The parts of a joint score: networks that go token by token, and CTC over the frames."""

from typing import Any, Protocol

import torch
from torch import Tensor

from espnet3.components.decoding.ctc_prefix_score import CTCPrefixScorer


class StepNetwork(Protocol):
    """What an attention decoder and a language model have in common."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return log-probabilities `[rows, n_tokens]` behind one more token in each row."""
        ...

    def select(self, state: Any, indices: Tensor) -> Any:
        """Return the state of other rows."""
        ...


class NetworkPart:
    """A network with its state, whose log-probabilities add up along a hypothesis."""

    def __init__(self, name: str, weight: float, network: StepNetwork, state: Any) -> None:
        self.name = name
        self.weight = weight
        self._network = network
        self._state = state
        self._log_probs = torch.empty(0)

    def step(self, tokens: Tensor) -> Tensor:
        """Return the log-probabilities of the next token for `[utterances, rows]` last tokens."""
        log_probs, self._state = self._network.step(tokens.flatten(), self._state)
        self._log_probs = log_probs.double().view(*tokens.shape, -1)
        return self._log_probs

    def score(self, sums: Tensor, candidates: Tensor) -> Tensor:
        """Return the sums of hypotheses `[utterances, rows]` with each candidate, after `step`."""
        return sums[..., None] + self._log_probs.gather(-1, candidates)

    def keep(self, utterances: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Go on with the rows `parents` of these utterances."""
        n_rows = self._log_probs.shape[1]
        self._state = self._network.select(
            self._state, (utterances[:, None] * n_rows + parents).flatten()
        )


class CTCPart:
    """The prefix score of CTC; it is not a sum over tokens, but replaced at each one."""

    name = "ctc"

    def __init__(self, weight: float, log_probs: Tensor, lengths: Tensor) -> None:
        self.weight = weight
        self._scorer = CTCPrefixScorer(log_probs, lengths)
        self._state = self._scorer.start()

    def score(self, sums: Tensor, candidates: Tensor) -> Tensor:
        """Return the score of each hypothesis `[utterances, rows]` with each candidate."""
        n_tokens = self._scorer.n_tokens
        if candidates.shape[-1] < n_tokens - 1:
            return self._scorer.score(self._state, candidates)
        return self._scorer.score(self._state).gather(-1, candidates)

    def keep(self, utterances: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Go on with the rows `parents` of these utterances, with one more token each."""
        if len(utterances) < len(self._state.last):
            self._scorer.select(utterances)
            self._state = self._state.select(utterances)
        self._state = self._scorer.extend(self._state, parents, tokens)


Part = NetworkPart | CTCPart
