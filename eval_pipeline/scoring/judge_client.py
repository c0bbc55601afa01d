"""One call of a judge's model, through pydantic-ai, which is imported when the first judge is made: it takes seconds."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from eval_pipeline.domain.experiment import JudgeSpec
from eval_pipeline.domain.usage import Usage
from eval_pipeline.errors import SpecError
from eval_pipeline.scoring.judge_prompt import SYSTEM
from eval_pipeline.scoring.judge_reply import schema
from eval_pipeline.scoring.judge_votes import MAX_TOKENS
from eval_pipeline.scoring.judge_wire import Reply, Request, Wire, plain_reply, request_around

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai import ModelResponse
    from pydantic_ai.models import Model

_BASE_URLS = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
PROVIDERS = tuple(_BASE_URLS)
TOOL = "verdict"
_ASKED: ContextVar[tuple[str, bool, Reply | None]] = ContextVar("asked")
"""What the library is asked with: its text, whether by occurrence, and what came to it already."""


class JudgeUnusable(SpecError):
    """No call of this judge can succeed: its key, its name or its address is wrong."""

    code = "judge_unusable"


@dataclass(frozen=True, kw_only=True)
class Answered:
    """arguments: JSON, as the model wrote it; None: it did not call the tool, and `why` says what it did. usage None: not told."""

    arguments: str | None
    usage: Usage | None
    latency_s: float
    why: str | None = None


class CallFailed(Exception):
    """No reply. kind: rate_limit, provider, timeout, rejected or unreadable. retry_after_s: what the provider asked for.

    unbilled: the provider said that it did nothing.
    """

    def __init__(self, kind: str, message: str, *, latency_s: float, retry_after_s: float | None = None, unbilled: bool = False):
        super().__init__(message)
        self.kind = kind
        self.latency_s = latency_s
        self.retry_after_s = retry_after_s
        self.unbilled = unbilled


def check_judge(judge: JudgeSpec) -> None:
    """Raises SpecError for a judge that could never be asked."""
    if judge.provider not in PROVIDERS or not judge.model_name:
        known = ", ".join(f"`{name}:MODEL`" for name in PROVIDERS)
        raise SpecError(
            f"judge.model is {judge.model!r}", hint=f"write {known}; `base_url` names a server that speaks as one of them does"
        )
    if judge.base_url is not None:
        parts = urlsplit(judge.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise SpecError(
                f"judge.base_url is {judge.base_url!r}", hint="write http(s)://host[:port]/path, without credentials in it"
            )


def key_name(judge: JudgeSpec) -> str:
    """The secret that holds its key. A server of one's own never gets a provider's key."""
    return "EVALS_JUDGE_API_KEY" if judge.base_url else f"EVALS_JUDGE_{judge.provider.upper()}_API_KEY"


def pool_of(judge: JudgeSpec) -> str:
    """Whose limits its calls count against."""
    return urlsplit(judge.base_url).netloc if judge.base_url else judge.provider


class JudgeClient:
    """An async context manager. key None: the server asks for none. timeout_s: the deadline of one call."""

    def __init__(self, judge: JudgeSpec, key: str | None, timeout_s: float) -> None:
        self._judge = judge
        self._key = key
        self._timeout_s = timeout_s
        self._base_url = judge.base_url or _BASE_URLS[judge.provider]
        self._wire = Wire(self._base_url)
        self._model: Model[Any] | None = None
        self._client: Any = None
        self._requests: dict[bool, Request] = {}

    async def __aenter__(self) -> Self:
        self._model = await asyncio.to_thread(self._open)
        await self._wire.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._wire.__aexit__(kind, error, trace)
        await self._client.close()

    def _open(self) -> Model[Any]:
        import httpx2

        line = httpx2.AsyncClient(transport=httpx2.MockTransport(self._on_line))
        ours: dict[str, Any] = {"api_key": self._key or "none", "base_url": self._base_url, "http_client": line}
        ours |= {"max_retries": 0, "timeout": self._timeout_s}
        if self._judge.provider == "anthropic":
            import anthropic
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            self._client = anthropic.AsyncAnthropic(**ours)
            return AnthropicModel(self._judge.model_name, provider=AnthropicProvider(anthropic_client=self._client))
        import openai
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        self._client = openai.AsyncOpenAI(**ours)
        return OpenAIChatModel(self._judge.model_name, provider=OpenAIProvider(openai_client=self._client))

    async def ask(self, shared: str, question: str, *, per_occurrence: bool) -> Answered:
        """shared: what several questions begin with. Raises CallFailed and JudgeUnusable."""
        from pydantic_ai import exceptions

        began = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                said = await self._said(f"{shared}\n\n{question}", per_occurrence)
        except (exceptions.ModelAuthenticationError, exceptions.ModelNotFoundError) as error:
            hint = f"look at the judge's model, its base_url and {key_name(self._judge)}"
            raise JudgeUnusable(f"the judge {self._judge.model} can't be asked: {_short(error)}", hint=hint) from error
        except Exception as error:
            raise _failed(error, time.monotonic() - began) from error
        latency_s = time.monotonic() - began
        if isinstance(said, tuple):
            return Answered(arguments=said[0], usage=said[1], latency_s=latency_s)
        return _answered(said, self._judge.model_name, latency_s)

    async def _said(self, text: str, per_occurrence: bool) -> tuple[str, Usage] | ModelResponse:
        """By the library the first time, and whenever the request or the reply is not a plain one."""
        request, sent = self._requests.get(per_occurrence), self._as_sent(text)
        if request is None or sent is None:
            return await self._by_library(text, per_occurrence)
        reply = await self._wire.send(request.url, request.headers, request.body(sent))
        plain = plain_reply(self._judge.provider, reply, TOOL, self._judge.model_name)
        return plain or await self._by_library(text, per_occurrence, reply)

    def _as_sent(self, text: str) -> str | None:
        """As the library writes it. None: in more than one part."""
        from pydantic_ai import ModelRequest, UserPromptPart

        assert self._model is not None
        if not self._model.profile.get("may_tokenize_special_tokens_in_content"):
            return text
        match self._model.prepare_messages([ModelRequest.user_text_prompt(text)]):
            case [ModelRequest(parts=[UserPromptPart(content=str(sent))])]:
                return sent
        return None

    async def _by_library(self, text: str, per_occurrence: bool, reply: Reply | None = None) -> ModelResponse:
        """reply: what came to it already; None: it is sent."""
        from pydantic_ai import ModelRequest, ToolDefinition
        from pydantic_ai.direct import model_request
        from pydantic_ai.models import ModelRequestParameters

        assert self._model is not None
        tool = ToolDefinition(
            name=TOOL,
            description="Give the verdict.",
            parameters_json_schema=schema(per_occurrence),
            strict=True,
            kind="output",
        )
        _ASKED.set((text, per_occurrence, reply))
        return await model_request(
            self._model,
            [ModelRequest.user_text_prompt(text, instructions=SYSTEM)],
            model_settings={"temperature": self._judge.temperature, "max_tokens": MAX_TOKENS},
            model_request_parameters=ModelRequestParameters(output_mode="tool", output_tools=[tool], allow_text_output=False),
        )

    async def _on_line(self, written: httpx2.Request) -> httpx2.Response:
        """Where the library believes the provider to be."""
        import httpx2

        text, per_occurrence, reply = _ASKED.get()
        if reply is None:
            url, headers, body = str(written.url), dict(written.headers), written.content
            request = request_around(text, url, headers, body)
            if request is not None:
                self._requests[per_occurrence] = request
            reply = await self._wire.send(url, headers, body)
        return httpx2.Response(reply.status, headers=dict(reply.headers), content=reply.body)


def _answered(response: ModelResponse, model: str, latency_s: float) -> Answered:
    from pydantic_ai import ToolCallPart

    calls = [part for part in response.parts if isinstance(part, ToolCallPart) and part.tool_name == TOOL]
    usage = _usage(response, model)
    if len(calls) == 1 and response.finish_reason != "length":
        given = calls[0].args
        arguments = given if isinstance(given, str) else calls[0].args_as_json_str()
        return Answered(arguments=arguments, usage=usage, latency_s=latency_s)
    if response.finish_reason in ("length", "content_filter"):
        why = f"the reply was cut off ({response.finish_reason})"
    else:
        why = f"it gave {len(calls)} verdicts in one reply" if calls else "it replied in words, without a verdict"
    return Answered(arguments=None, usage=usage, latency_s=latency_s, why=why)


def _usage(response: ModelResponse, model: str) -> Usage | None:
    """The library's counts contain each other; ours are disjoint."""
    told = response.usage
    if told.unmeasured_requests or told.input_tokens + told.output_tokens == 0:
        return None
    return Usage(
        model=model,
        input_uncached=max(0, told.input_tokens - told.cache_read_tokens - told.cache_write_tokens),
        cache_read=told.cache_read_tokens,
        cache_write_5m=told.cache_write_tokens - told.cache_write_1h_tokens,
        cache_write_1h=told.cache_write_1h_tokens,
        output=told.output_tokens,
        reasoning=min(told.output_reasoning_tokens, told.output_tokens),
    )


def _failed(error: Exception, latency_s: float) -> CallFailed:
    import aiohttp
    from pydantic_ai import exceptions

    if isinstance(error, TimeoutError | exceptions.ModelTimeoutError | exceptions.ModelRequestTimeout):
        return CallFailed("timeout", f"no reply after {latency_s:.1f} s", latency_s=latency_s)
    if isinstance(error, aiohttp.ClientError | OSError):
        return CallFailed("provider", _short(error), latency_s=latency_s)
    if not isinstance(error, exceptions.ModelAPIError):
        return CallFailed("unreadable", f"the reply can't be read: {_short(error)}", latency_s=latency_s)
    kinds = {exceptions.ModelRateLimitError: "rate_limit", exceptions.ModelRequestRejectedError: "rejected"}
    kind = next((kind for cls, kind in kinds.items() if isinstance(error, cls)), "provider")
    unbilled = isinstance(error, exceptions.ModelHTTPError)
    return CallFailed(kind, _short(error), latency_s=latency_s, retry_after_s=error.retry_after, unbilled=unbilled)


def _short(error: Exception) -> str:
    return f"{type(error).__name__.lstrip('_')}: {error}"[:500]
