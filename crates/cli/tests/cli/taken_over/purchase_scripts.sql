-- Synchronization of purchases, each employee his own.

CALL ml_add_connection_script( 'purchase', 'begin_connection',
    'SELECT set_config( ''purchase.emp_id'', '''', false )' );

CALL ml_add_connection_script( 'purchase', 'begin_synchronization',
    'SELECT set_config( ''purchase.emp_id'',
        ( SELECT emp_id::text FROM employee WHERE login = ? ), false );
     INSERT INTO happened ( event ) VALUES ( ''begin_synchronization'' )' );

CALL ml_add_connection_script( 'purchase', 'begin_upload',
    'INSERT INTO happened ( event ) VALUES ( ''begin_upload'' )' );

CALL ml_add_table_script( 'purchase', 'purchase', 'begin_upload_rows',
    'INSERT INTO happened ( event ) VALUES ( ''begin_upload_rows '' || {ml s.table} )' );

CALL ml_add_table_script( 'purchase', 'purchase', 'upload_insert',
    'INSERT INTO purchase ( emp_id, purch_id, cust_id, cost, order_date, notes )
     VALUES ( ?, ?, ?, ?, ?, ? )' );

CALL ml_add_table_script( 'purchase', 'purchase', 'upload_fetch',
    'SELECT emp_id, purch_id, cust_id, cost, order_date, notes
     FROM purchase WHERE emp_id = ? AND purch_id = ?' );

CALL ml_add_table_script( 'purchase', 'purchase', 'upload_update',
    'UPDATE purchase SET cust_id = ?, cost = ?, order_date = ?, notes = ?
     WHERE emp_id = ? AND purch_id = ?' );

CALL ml_add_table_script( 'purchase', 'purchase', 'upload_old_row_insert',
    'INSERT INTO happened ( event ) VALUES ( ''upload_old_row_insert '' || {ml o.purch_id} || '' '' || {ml o.cost} )' );

CALL ml_add_table_script( 'purchase', 'purchase', 'upload_new_row_insert',
    'INSERT INTO purchase_conflict ( emp_id, purch_id, new_cost )
     VALUES ( {ml r.emp_id}, {ml r.purch_id}, {ml r.cost} )' );

CALL ml_add_table_script( 'purchase', 'purchase', 'resolve_conflict',
    '{ call resolve_purchase( ?, ? ) }' );

CALL ml_add_table_script( 'purchase', 'purchase', 'end_upload_rows',
    'INSERT INTO happened ( event ) VALUES ( ''end_upload_rows'' )' );

CALL ml_add_table_script( 'purchase', 'purchase', 'upload_delete',
    'DELETE FROM purchase WHERE emp_id = ? AND purch_id = ?' );

CALL ml_add_table_script( 'purchase', 'purchase', 'end_upload_deletes',
    'INSERT INTO happened ( event ) VALUES ( ''end_upload_deletes'' )' );

CALL ml_add_table_script( 'purchase', 'purchase', 'upload_statistics',
    'INSERT INTO sync_figures ( user_name, what, first_figure, second_figure )
     VALUES ( {ml s.username}, ''upload'', {ml s.inserted_rows}, {ml s.conflicted_updates} )' );

CALL ml_add_table_script( 'purchase', 'purchase', 'download_cursor',
    'SELECT emp_id, purch_id, cust_id, cost, order_date, notes FROM purchase
     WHERE last_modified >= ? AND emp_id = ( SELECT emp_id FROM employee WHERE login = ? )' );

CALL ml_add_table_script( 'purchase', 'purchase', 'download_delete_cursor',
    'SELECT emp_id, purch_id FROM purchase_deleted
     WHERE deleted_at >= ? AND emp_id = ( SELECT emp_id FROM employee WHERE login = ? )' );

CALL ml_add_connection_script( 'purchase', 'download_statistics',
    'INSERT INTO sync_figures ( user_name, what, first_figure, second_figure )
     VALUES ( {ml s.username}, ''download'', {ml s.fetched_rows}, {ml s.deleted_rows} )' );

CALL ml_add_connection_script( 'purchase', 'end_synchronization',
    'INSERT INTO happened ( event )
     SELECT ''end_synchronization '' || {ml s.synchronization_ok} || '' of '' || current_setting( ''purchase.emp_id'' )' );

CALL ml_add_connection_script( 'purchase', 'time_statistics',
    'INSERT INTO sync_figures ( user_name, what, first_figure, second_figure )
     VALUES ( {ml s.username}, {ml s.event_name}, {ml s.number_of_calls}, {ml s.total_time} )' );
