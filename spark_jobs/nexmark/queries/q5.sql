-- The auctions with the most bids of ten seconds, every two seconds. Counted by panes of two seconds first: a bid then
-- counts once, and not in each of its five windows. The panes of a window are kept for a thousand auctions together, and
-- each such block has its own winners: few rows of state to write and to drop.
-- mode: append
-- event time: yes
-- beside: starttime
SELECT hot.auction, hot.num, starttime, newest
FROM (
    SELECT inline(flatten(transform(filter(blocks, one -> one.num = most), one -> one.winners))) AS (auction, num),
           starttime, newest
    FROM (
        SELECT collect_list(struct(best.num, best.winners)) AS blocks, max(best.num) AS most,
               span.start AS starttime, max(n) AS newest
        FROM (
            -- Sorted by auction, the counts of one add up as they come; whoever reaches the most so far wins so far.
            SELECT span, n, aggregate(
                array_sort(panes),
                named_struct('auction', -1L, 'sum', 0L, 'num', 0L, 'winners', array_repeat(struct(0L AS auction, 0L AS num), 0)),
                (got, pane) -> named_struct(
                    'auction', pane.auction,
                    'sum', IF(pane.auction = got.auction, got.sum, 0L) + pane.bids,
                    'num', greatest(got.num, IF(pane.auction = got.auction, got.sum, 0L) + pane.bids),
                    'winners', CASE
                        WHEN IF(pane.auction = got.auction, got.sum, 0L) + pane.bids > got.num
                        THEN array(struct(pane.auction AS auction, IF(pane.auction = got.auction, got.sum, 0L) + pane.bids AS num))
                        WHEN IF(pane.auction = got.auction, got.sum, 0L) + pane.bids = got.num
                        THEN array_append(got.winners, struct(pane.auction AS auction, got.num AS num))
                        ELSE got.winners
                    END
                )
            ) AS best
            FROM (
                SELECT collect_list(struct(auction, bids)) AS panes, max(n) AS n, span
                FROM (
                    SELECT auction, bids, n, window(pane, '10 seconds', '2 seconds') AS span
                    FROM (
                        SELECT auction, count(*) AS bids, max(n) AS n, window(dateTime, '2 seconds') AS pane
                        FROM bid
                        GROUP BY auction, window(dateTime, '2 seconds')
                    )
                )
                GROUP BY auction div 1024, span
            )
        )
        GROUP BY span
    )
) AS hot
