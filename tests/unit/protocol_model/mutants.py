# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ARG002 - a mutant ignores what the rule asks about
"""The protocol, broken on purpose: one hole each, named after the rule that closes it."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.domain import protocol
from dispatcher.domain.lifecycle import LaunchEvent
from dispatcher.domain.protocol import AdoptVerdict, Permit, ReportVerdict, RevokeVerdict, SubmitVerdict
from tests.unit.protocol_model.rules import Rules


class Rule2KeepsAStaleToken(Rules):
    """A token that an earlier launch had is taken for a fresh one."""

    def needs_new_token(self, token, *, in_ledger):
        return token is None


class Rule2LeavesATaskWithoutToken(Rules):
    """A task that brings no token gets none."""

    def needs_new_token(self, token, *, in_ledger):
        return in_ledger


class Rule3LeavesOlderLaunchesOpen(Rules):
    """A newer launch is submitted, and older ones stay as they are."""

    def is_made_old_by(self, launch, newer):
        return False


class Rule3SupersedesARunningCallback(Rules):
    """A newer launch of a callback supersedes the one that runs."""

    def is_made_old_by(self, launch, newer):
        same = launch.subject_id == newer.subject_id and launch.sequence < newer.sequence
        return (same and launch.open) or super().is_made_old_by(launch, newer)

    def allows(self, launch, event):
        return launch.open if event is LaunchEvent.SUPERSEDE else super().allows(launch, event)


class Rule3ListensToOlderLaunches(Rules):
    """Calls after the claim are judged by the state of their own launch alone."""

    def judge_call(self, launch, subject, token, claimant):
        subject = None if subject is None else replace(subject, token=token)
        return super().judge_call(launch, subject, token, claimant)


class Rule4SubmitsWhatAnotherOwns(Rules):
    """The write-ahead does not ask for the owner."""

    def judge_submit(self, launch, subject, owner, *, claimed_elsewhere):
        owner = owner if launch is None else launch.scheduler_job_id
        return super().judge_submit(launch, subject, owner, claimed_elsewhere=claimed_elsewhere)

    def owns(self, launch, owner):
        return True


class Rule4TrustsItsRead(Rules):
    """The write-ahead does not repeat that the task is QUEUED under the token."""

    def submit_finds(self, row, token):
        return True


class NobodyGivesUp(Rules):
    """Callbacks are waited for without end, so that time cures no hole of another mutant."""

    def has_expired(self, launch, now, patience):
        return False


class Rule4SendsWhatIsClaimed(NobodyGivesUp):
    """A launch that a worker has claimed meanwhile is submitted again."""

    def judge_submit(self, launch, subject, owner, *, claimed_elsewhere):
        return SubmitVerdict.SEND

    def allows(self, launch, event):
        return event is LaunchEvent.SUBMIT or super().allows(launch, event)


class Rule4DropsWhatIsClaimed(Rules):
    """What may not be sent is dropped, whether it was claimed or not."""

    def judge_submit(self, launch, subject, owner, *, claimed_elsewhere):
        verdict = super().judge_submit(launch, subject, owner, claimed_elsewhere=claimed_elsewhere)
        return SubmitVerdict.DROP if verdict is SubmitVerdict.FORGET else verdict

    def allows(self, launch, event):
        return event is LaunchEvent.DROP or super().allows(launch, event)


class Rule4SendsBeforeTheCommit(Rules):
    """Work is sent by whoever queues it."""

    def sends_at_once(self):
        return True


class Rule6RelaunchesWhatRuns(Rules):
    """A launch is replaced without a look at its rows under the lock."""

    def may_relaunch(self, launch, subject, others):
        return True


class Rule6RelaunchesWhatIsNotQueued(Rules):
    """It is not asked whether the task still waits in QUEUED."""

    def may_relaunch(self, launch, subject, others):
        subject = None if subject is None else replace(subject, state="queued")
        return super().may_relaunch(launch, subject, others)


class Rule6RelaunchesAnOldLaunch(Rules):
    """It is not asked whether the task still carries the token of the launch."""

    def may_relaunch(self, launch, subject, others):
        subject = None if subject is None else replace(subject, token=launch.token)
        return super().may_relaunch(launch, subject, others)


class Rule6LeavesTheOldLaunchOpen(Rules):
    """The new launch is issued, and the old one stays as it is."""

    def relaunch_ends_the_old(self):
        return False


class Rule6RelaunchesForEver(Rules):
    """It is not counted how often a subject was launched again."""

    def relaunches(self, launches):
        return 0


class Rule6RelaunchesACallbackThatRan(Rules):
    """The other launches of a callback are not looked at."""

    def may_relaunch(self, launch, subject, others):
        return super().may_relaunch(launch, subject, ())


class Rule6ResendsUnderANewToken(Rules):
    """What was submitted before is sent again under another token."""

    def token_to_send(self, launch):
        return f"{launch.token}-again"


class Rule7ClaimsByStateAlone(Rules):
    """The fence does not compare the token with that of the task."""

    def judge_claim(self, launch, subject, token, claimant, *, by_header):
        subject = None if subject is None else replace(subject, token=token)
        return super().judge_claim(launch, subject, token, claimant, by_header=by_header)

    def claim_finds(self, row, token):
        return row is not None and row.state == "queued"


class Rule7TrustsItsRead(Rules):
    """The claim does not repeat what was judged."""

    def claim_finds(self, row, token):
        return True


class Rule7ClaimsWhatIsClaimed(Rules):
    """The claim does not ask whether the launch is still unclaimed."""

    def allows(self, launch, event):
        return event is LaunchEvent.CLAIM or super().allows(launch, event)

    def claim_finds(self, row, token):
        return row is not None and row.token == token and row.state in ("queued", "running")


class Rule7ClaimsRestarting(Rules):
    """A task that was cleared while it ran may be claimed."""

    def judge_claim(self, launch, subject, token, claimant, *, by_header):
        if launch is not None and subject is not None and subject.state == "restarting":
            return Permit.CLAIM
        return super().judge_claim(launch, subject, token, claimant, by_header=by_header)

    def allows(self, launch, event):
        return event is LaunchEvent.CLAIM or super().allows(launch, event)

    def claim_finds(self, row, token):
        return row is not None and row.state in ("queued", "restarting") and row.token == token


class Rule7NamesTheWorker(Rules):
    """A claimant is a worker process, and not one delivery or pod start."""

    def claimant(self, worker, execution, *, stock):
        return super().claimant(worker, worker if not stock else "1", stock=stock)


class Rule8AcceptsAnyClaimant(Rules):
    """Whoever asks for a claimed launch is taken for its claimant."""

    def judge_claim(self, launch, subject, token, claimant, *, by_header):
        if launch is not None and launch.claimant is not None:
            claimant = launch.claimant
        return super().judge_claim(launch, subject, token, claimant, by_header=by_header)


class Rule8RefusesTheSameClaimant(Rules):
    """A claimant that did not hear the answer is refused its own launch."""

    def judge_claim(self, launch, subject, token, claimant, *, by_header):
        verdict = super().judge_claim(launch, subject, token, claimant, by_header=by_header)
        return protocol.why_not_current(launch) if verdict is Permit.REPEAT else verdict


class Rule8RefusesDuplicatesOfStockWorkers(Rules):
    """A stock worker with a duplicate gets a reason that it does not know, and stores a failure."""

    def judge_claim(self, launch, subject, token, claimant, *, by_header):
        return super().judge_claim(launch, subject, token, claimant, by_header=True)


class Rule13MatchesTheTaskAlone(Rules):
    """The end of a launch counts for its task, whatever launch that now has."""

    def judge_report(self, launch, subject, ending, now, heartbeat_timeout, others):
        if subject is not None and launch.dag_id is not None:
            subject = replace(subject, token=launch.token)
        return super().judge_report(launch, subject, ending, now, heartbeat_timeout, others)


class Rule13IgnoresTheState(Rules):
    """The end of a launch is told whatever the task has said itself."""

    def judge_report(self, launch, subject, ending, now, heartbeat_timeout, others):
        current = subject is not None and subject.token == launch.token and subject.ours
        if current and launch.settled_at is None:
            return ReportVerdict.EMIT
        return super().judge_report(launch, subject, ending, now, heartbeat_timeout, others)


class Rule13BelievesAnyArtefact(Rules):
    """Every end of an artefact is taken for that of the claimant."""

    def ending(self, launch, observation):
        return replace(super().ending(launch, observation), proven=True)


class Rule13ReportsForOtherExecutors(Rules):
    """It is not asked whether the task's executor is this one."""

    def judge_report(self, launch, subject, ending, now, heartbeat_timeout, others):
        subject = None if subject is None else replace(subject, ours=True)
        return super().judge_report(launch, subject, ending, now, heartbeat_timeout, others)


class Rule13TellsThatItSent(Rules):
    """The executor tells Airflow QUEUED once a task is sent."""

    def reports_start(self):
        return True


class Rule14ReportsOnce(Rules):
    """A report is done with once Airflow has drained it."""

    def reports_again(self):
        return False


class Rule14RemovesBeforeItSettles(Rules):
    """Pods and results are removed as soon as their end is in the ledger."""

    def removes_at_once(self):
        return True


class Rule17LetsGoOfWhatIsClaimed(Rules):
    """The revocation of a claimed launch is not declined."""

    def judge_revoke(self, launch, subject):
        verdict = super().judge_revoke(launch, subject)
        return RevokeVerdict.NOTHING if verdict is RevokeVerdict.DECLINE else verdict


class Rule18HandsBackRunningTasks(Rules):
    """A running task of a dead scheduler is handed back."""

    def judge_adopt(self, launch, subject):
        return AdoptVerdict.HAND_BACK


class Rule18TakesFromTheLiving(Rules):
    """The new owner is written whoever the old one is."""

    def may_take_over(self, launch, dead):
        return True


class Rule18LeavesTheOwner(Rules):
    """Adopted launches keep their dead owner."""

    def may_take_over(self, launch, dead):
        return False


class Rule19RunsWhatRanElsewhere(Rules):
    """The claim of a callback looks at its own launch alone."""

    def judge_callback_claim(self, launch, subject, claimant, *, claimed_elsewhere):
        return super().judge_callback_claim(launch, subject, claimant, claimed_elsewhere=False)

    def was_never_claimed(self, launches):
        return True


class Rule19TrustsItsRead(Rules):
    """The claim of a callback does not repeat that no launch of it was ever claimed."""

    def was_never_claimed(self, launches):
        return True


class Rule19SendsTheNewerLaunch(NobodyGivesUp):
    """A launch is sent, and waited for, although another one has run the callback."""

    def judge_submit(self, launch, subject, owner, *, claimed_elsewhere):
        return super().judge_submit(launch, subject, owner, claimed_elsewhere=False)


class Rule19ReportsTheDroppedLaunch(Rules):
    """A launch that was dropped for another one is reported like any other that failed."""

    def judge_report(self, launch, subject, ending, now, heartbeat_timeout, others):
        return super().judge_report(launch, subject, ending, now, heartbeat_timeout, ())


class Rule19WaitsForEver(NobodyGivesUp):
    """A callback whose message is nowhere any more is waited for."""


class Rule19KeepsWhatNobodyRuns(Rules):
    """A callback whose worker vanished counts as running."""

    def is_abandoned(self, *, runs):
        return False


class Rule19GivesUpWhatRuns(Rules):
    """A callback that has told nothing for a while is given up, without a look at who runs it."""

    def is_abandoned(self, *, runs):
        return True


class Rule19InventsAnOutcome(Rules):
    """What became of the launch that ran the callback is not looked up."""

    def callback_ending(self, launch, ending, others):
        return ending


class Rule20PrunesByAgeAlone(Rules):
    """It is not asked whether a task still carries the token."""

    def may_be_pruned(self, launch, subject, before):
        return super().may_be_pruned(launch, None, before)
