// How the ranks of a run find out, before they connect to one another, that all
// are there and why one is not: through the store alone.
//
// exchange() is collective over all ranks. A rank that cannot start calls
// fail() instead; every other rank's exchange() then throws that first cause,
// with rank and host. Rank 0 collects and answers, so a rank costs two keys and
// one wait per exchange.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/store.h"

namespace brigade {

// Who meets, and how long each waits.
struct StartMeetingOptions {
  int rank = 0;
  int size = 1;
  std::string host;  // of this rank, for messages
  // How long each exchange waits.
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  // How long rank 0 serves the ranks that have yet to read why the start
  // failed; at most `timeout`.
  std::chrono::milliseconds linger{std::chrono::seconds(15)};
  // Called on rank 0 while ranks are missing, at most every `report_every`.
  std::function<void(const std::string&)> on_progress;
  std::chrono::milliseconds report_every{std::chrono::seconds(5)};
};

class StartMeeting {
 public:
  // One per run and store.
  StartMeeting(const StorePtr& store, StartMeetingOptions options);

  // Every rank's text, by rank. Throws an Error of the first failed rank's kind
  // that names its rank and host, CommError that names the ranks that did not
  // come within the timeout, ConfigError where ranks were started for worlds of
  // different sizes, and on a process whose rank another one has taken.
  std::vector<std::string> exchange(const std::string& mine);

  // On rank 0, before it gives up for a reason that every rank finds by itself
  // in the texts of the last exchange: waits until they have read them or
  // `linger` is over. On other ranks nothing.
  void wait_for_readers();

  // This rank cannot start, for this reason. Returns once the store holds it,
  // on rank 0 when all have read it or `linger` is over. Does not throw.
  void fail(const Error& cause) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  // That this process alone is this rank. Another one may be found when it
  // claims, or by check_claim() once all are there.
  void claim();
  void check_claim();
  // Rank 0: everyone's texts of this round or why there are none.
  std::string collect(const std::string& round);
  // The answer to all where a rank was started for a world of another size.
  std::string refuse_size(int rank, int size);
  std::string missing_ranks(
      const std::vector<std::optional<std::string>>& texts) const;
  // The texts of an answer, or throws what it says.
  std::vector<std::string> read(const std::string& answer) const;

  StorePtr store_;
  StartMeetingOptions options_;
  int round_ = -1;     // of the last exchange
  std::string claim_;  // what this process wrote; "": nothing yet
};

}  // namespace brigade
