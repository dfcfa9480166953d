// The facts that ranks compare before they connect to one another.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "brigade/comm/start/start_rendezvous.h"
#include "brigade/launch/environment.h"
#include "brigade/launch/network.h"

namespace brigade {

// A value that must be the same on every rank.
struct StartFact {
  std::string name;    // "the config", as messages call it
  std::string value;   // short: a version, a digest
  std::string advice;  // what to do where it differs
  // The entries, by name, of which `value` is the digest. They are exchanged
  // only if the values differ, so that the message can name those that do.
  // Empty: none are named.
  std::map<std::string, std::string> entries = {};
};

struct StartFacts {
  std::vector<StartFact> facts;  // as many on each rank, in the same order
  // On rank 0: a folder that every host must see as the same one; it need not
  // exist yet. Empty: none.
  std::filesystem::path shared_folder;
};

// The values that one rank sends to all others before they connect.
struct RankStart {
  std::string host;
  PeerAddress address;
  StartFacts facts;
};

// Collective. Returns every rank's host name, by rank. Throws the same
// ConfigError on every rank, naming rank, host and the entries that differ, if
// a fact differs from rank 0's, if ranks on several hosts have a loopback
// address for their peers, or if a host does not see the shared folder; also
// throws what StartRendezvous::exchange() does. With several hosts, it makes
// and removes a file beside the shared folder.
std::vector<std::string> agree_on_start(
    StartRendezvous& rendezvous,
    const LaunchEnvironment& environment,
    const RankStart& mine);

}  // namespace brigade
