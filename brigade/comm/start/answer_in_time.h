// Requests to a store whose host may be out of reach.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

namespace brigade {

// The answer of `request`, which runs on a thread of its own: c10d waits
// without end for the answers to some requests. Returns std::nullopt if it does
// not come in time; the waiting thread is left behind. Throws what `request`
// throws. Where no thread can be started it runs on the caller's, without the
// limit.
template <typename Answer>
std::optional<Answer> answer_in_time(
    std::function<Answer()> request,
    std::chrono::milliseconds timeout) {
  auto task =
      std::make_shared<std::packaged_task<Answer()>>(std::move(request));
  auto answer = task->get_future();
  try {
    std::thread([task] { (*task)(); }).detach();
  } catch (const std::system_error&) {
    (*task)();  // no thread could be started
  }
  if (answer.wait_for(timeout) != std::future_status::ready)
    return std::nullopt;
  return answer.get();
}

}  // namespace brigade
