// SPDX-License-Identifier: Apache-2.0
// Streams and events of the stand-in for the CUDA runtime.
#include <algorithm>
#include <chrono>
#include <utility>

#include "executor.hpp"
#include "runtime.hpp"
#include "settings.hpp"

namespace hostexec {

namespace {

// In the order they were made.
std::vector<cudaStream_t>& streams() {
  static std::vector<cudaStream_t> all;
  return all;
}

bool exists(cudaStream_t stream) {
  return std::find(streams().begin(), streams().end(), stream) != streams().end();
}

double now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(time).count();
}

void run_first(cudaStream_t stream) {
  const Operation operation = std::move(stream->waiting.front());
  stream->waiting.pop_front();
  operation();
}

// Streams that have something waiting run in the order chosen: of two that do not wait for each
// other either may come first.
void finish_those(bool only_blocking) {
  const auto waits = [only_blocking](cudaStream_t s) {
    return !s->waiting.empty() && (s->blocking || !only_blocking);
  };
  if (std::none_of(streams().begin(), streams().end(), waits)) return;
  const DeviceVisible visible;
  Settings settings = Settings::from_environment();
  for (;;) {
    std::vector<cudaStream_t> busy;
    for (const cudaStream_t s : streams()) {
      if (waits(s)) busy.push_back(s);
    }
    if (busy.empty()) return;
    if (settings.order == Order::random)
      run_first(busy[settings.draw() % busy.size()]);
    else
      run_first(settings.order == Order::ascending ? busy.front() : busy.back());
  }
}

void complete(EventState& event, std::size_t record) {
  if (event.completed >= record) return;
  const DeviceVisible visible;
  while (event.completed < record) run_first(event.stream);
}

cudaError_t capture_state(cudaStream_t stream) {
  return stream->capture->valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

}  // namespace

bool is_default(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

cudaError_t enqueue(cudaStream_t stream, Operation operation) {
  if (is_default(stream)) {
    for (const cudaStream_t s : streams()) {
      if (!s->blocking || s->capture == nullptr) continue;
      s->capture->valid = false;
      return cudaErrorStreamCaptureImplicit;
    }
    finish_blocking();
    const DeviceVisible visible;
    operation();
    return cudaSuccess;
  }
  if (!exists(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->capture == nullptr) {
    stream->waiting.push_back(std::move(operation));
    return cudaSuccess;
  }
  if (stream->capture->valid) stream->capture->operations.push_back(std::move(operation));
  return capture_state(stream);
}

void finish(cudaStream_t stream) {
  if (is_default(stream)) return finish_blocking();
  if (stream->waiting.empty()) return;
  const DeviceVisible visible;
  while (!stream->waiting.empty()) run_first(stream);
}
void finish_blocking() { finish_those(true); }
void finish_all() { finish_those(false); }

bool captures(cudaStream_t stream) {
  return !is_default(stream) && exists(stream) && stream->capture != nullptr;
}

cudaError_t unless_capturing() {
  cudaError_t error = cudaSuccess;
  for (const cudaStream_t s : streams()) {
    if (s->capture == nullptr || s->capture->mode == cudaStreamCaptureModeRelaxed) continue;
    s->capture->valid = false;
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

// Forgets the capture in every stream that took part.
static void end_capture(const std::shared_ptr<Capture>& capture) {
  for (const cudaStream_t s : streams()) {
    if (s->capture == capture) s->capture = nullptr;
  }
}

}  // namespace hostexec

using namespace hostexec;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Called called("cudaStreamCreateWithFlags");
  *stream = new CUstream_st{flags != cudaStreamNonBlocking, {}, nullptr};
  streams().push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  const Called called("cudaDeviceGetStreamPriorityRange");
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Called called("cudaStreamDestroy", stream);
  if (!exists(stream)) return result(cudaErrorInvalidResourceHandle);
  finish(stream);
  std::erase(streams(), stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Called called("cudaStreamSynchronize", stream);
  if (!is_default(stream) && !exists(stream)) return result(cudaErrorInvalidResourceHandle);
  if (captures(stream)) {
    stream->capture->valid = false;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t e = is_default(stream) ? unless_capturing() : cudaSuccess; e != cudaSuccess)
    return result(e);
  finish(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Called called("cudaStreamQuery", stream);
  if (is_default(stream)) return cudaSuccess;
  if (!exists(stream)) return result(cudaErrorInvalidResourceHandle);
  if (captures(stream)) {
    stream->capture->valid = false;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  if (stream->waiting.empty()) return cudaSuccess;
  finish(stream);  // so that who asks again and again gets on
  return cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
  const Called called("cudaDeviceSynchronize");
  if (const cudaError_t e = unless_capturing(); e != cudaSuccess) return result(e);
  finish_all();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Called called("cudaStreamBeginCapture", stream);
  if (is_default(stream)) return result(cudaErrorStreamCaptureUnsupported);
  if (!exists(stream)) return result(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return result(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Called called("cudaStreamEndCapture", stream);
  *graph = nullptr;
  if (!captures(stream)) return result(cudaErrorIllegalState);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->origin != stream) return result(cudaErrorStreamCaptureUnmatched);
  end_capture(capture);
  if (!capture->valid) return result(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(capture->operations)};
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Called called("cudaStreamIsCapturing", stream);
  *status = cudaStreamCaptureStatusNone;
  if (captures(stream))
    *status =
        stream->capture->valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const Called called("cudaEventCreateWithFlags");
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Called called("cudaEventDestroy");
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Called called("cudaEventRecord", stream);
  const auto state = event->state;
  if (captures(stream)) {
    state->capture = stream->capture;
    return result(capture_state(stream));
  }
  const std::size_t record = ++state->recorded;
  state->stream = stream;
  state->capture = nullptr;
  return result(enqueue(stream, [state, record] {
    state->completed = record;
    state->milliseconds = now();
  }));
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Called called("cudaStreamWaitEvent", stream);
  const auto state = event->state;
  if (state->capture != nullptr) {  // the stream joins the capture, or has done so
    if (is_default(stream) || !exists(stream)) return result(cudaErrorStreamCaptureImplicit);
    if (stream->capture != nullptr && stream->capture != state->capture)
      return result(cudaErrorStreamCaptureMerge);
    stream->capture = state->capture;
    return cudaSuccess;
  }
  const std::size_t record = state->recorded;
  return result(enqueue(stream, [state, record] { complete(*state, record); }));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Called called("cudaEventSynchronize");
  if (event->state->capture != nullptr) return result(cudaErrorCapturedEvent);
  complete(*event->state, event->state->recorded);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Called called("cudaEventQuery");
  EventState& state = *event->state;
  if (state.capture != nullptr) return result(cudaErrorCapturedEvent);
  if (state.completed == state.recorded) return cudaSuccess;
  complete(state, state.recorded);  // as cudaStreamQuery
  return cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
  const Called called("cudaEventElapsedTime");
  for (const cudaEvent_t event : {first, last}) {
    if (event->state->recorded == 0) return result(cudaErrorInvalidResourceHandle);
    if (event->state->completed != event->state->recorded) return cudaErrorNotReady;
  }
  *milliseconds = static_cast<float>(last->state->milliseconds - first->state->milliseconds);
  return cudaSuccess;
}

}  // extern "C"
